// What every page has.
import { installActions } from "./actions";
import { installKeys } from "./keys";
import { installLive } from "./live";
import { installTables, prepareTables } from "./tables";
import { installTheme } from "./theme";
import { localise, tick } from "./times";
import { mountWidgets, register } from "./widgets";

installTheme();
localise(document);
prepareTables(document);
installTables();
installActions();
installKeys();
tick();
installLive();
register("gantt", () => import("./gantt/gantt"));
register("editor", () => import("./editor"));
register("job-form", () => import("./job-form"));
register("chart", () => import("./chart"));
register("log", () => import("./log"));
mountWidgets();
