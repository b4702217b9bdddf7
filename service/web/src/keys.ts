// Keys of the whole page: "/" searches, "?" lists the keys, "g" and a letter open a page.
import { showDialog } from "./dialogs";
import { all, el, isTyping } from "./dom";

const GO_MS = 1500;

function links(): HTMLAnchorElement[] {
  return all<HTMLAnchorElement>(document, "a[data-key]");
}

function help(): void {
  const rows: [string, string][] = [
    ["/", "Search"],
    ["?", "List the keys"],
    ...links().map((link): [string, string] => [`g ${link.dataset["key"]}`, link.textContent?.trim() ?? ""]),
  ];
  if (document.querySelector('[data-widget="gantt"]')) {
    rows.push(["← → ↑ ↓", "Timeline: select a neighbouring bar"], ["Shift + arrows", "Timeline: move"], ["+ −", "Timeline: zoom"]);
    rows.push(["0", "Timeline: show everything"], ["Enter", "Timeline: open the job"]);
  }
  const list = el("dl", { class: "kv keys" });
  for (const [key, what] of rows) list.append(el("dt", {}, el("kbd", {}, key)), el("dd", {}, what));
  void showDialog("Keys", list);
}

export function installKeys(): void {
  let wentAt = -Infinity;
  for (const button of all(document, "[data-help]")) button.addEventListener("click", help);
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (isTyping(document.activeElement) || document.querySelector("dialog[open]")) return;
    if (event.timeStamp - wentAt < GO_MS) {
      wentAt = -Infinity;
      const link = links().find((each) => each.dataset["key"] === event.key);
      if (link) {
        event.preventDefault();
        link.click();
        return;
      }
    }
    if (event.key === "g") wentAt = event.timeStamp;
    else if (event.key === "?") help();
    else if (event.key === "/") {
      const search = document.querySelector<HTMLElement>("main [data-search]") ?? document.querySelector<HTMLElement>("[data-search]");
      search?.focus();
      if (search) event.preventDefault();
    }
  });
}
