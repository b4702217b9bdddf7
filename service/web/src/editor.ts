// A YAML editor with completion from the API's own schema, and what the page of submission does with it: plan and submit.
// It lives in a shadow root, where its styles are constructed sheets: the page's policy allows no inline style.
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { EditorState } from "@codemirror/state";
import { EditorView, drawSelection, highlightActiveLine, keymap, lineNumbers, placeholder } from "@codemirror/view";
import { ApiError, call } from "./api";
import { el, url } from "./dom";
import { type Plan, type Plans, planCard } from "./plan-card";
import type { Schemas } from "./schema";
import type { Widget } from "./widgets";
import type { TextFault } from "./yaml-text";

type Help = typeof import("./editor-help");
type Yaml = typeof import("./yaml-text");

/** Typing over a selection. A browser would give the new text the style of the old one, which the page's security policy forbids. */
function typeOver(event: InputEvent, view: EditorView): boolean {
  const { from, to, empty } = view.state.selection.main;
  const text = event.data;
  if (event.inputType !== "insertText" || !text || empty || view.state.selection.ranges.length > 1) return false;
  const insert = () => view.state.update(view.state.replaceSelection(text), { userEvent: "input.type", scrollIntoView: true });
  if (!view.state.facet(EditorView.inputHandler).some((handler) => handler(view, from, to, text, insert))) view.dispatch(insert());
  event.preventDefault();
  return true;
}

const LOOK = EditorView.theme({
  "&": { color: "var(--text)", backgroundColor: "var(--panel)", border: "1px solid var(--line-strong)", borderRadius: "6px", fontSize: "13px" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "1px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5", maxHeight: "60vh", overflow: "auto" },
  ".cm-content, .cm-gutter": { minHeight: "16rem" },
  ".cm-content": { caretColor: "var(--text)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "var(--sunken)", color: "var(--muted)", border: "0" },
  ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--accent) 8%, transparent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "color-mix(in srgb, var(--accent) 28%, transparent)",
  },
  ".cm-tooltip": { backgroundColor: "var(--panel)", color: "var(--text)", border: "1px solid var(--line-strong)", borderRadius: "6px" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--on-accent)" },
  ".cm-completionInfo": { maxWidth: "22rem", padding: ".4rem .6rem" },
  ".cm-placeholder": { color: "var(--muted)" },
});

async function schemasAt(address: string | undefined): Promise<Schemas> {
  if (!address) return {};
  try {
    const found = (await (await call("GET", new URL(address, document.baseURI))).json()) as { components?: { schemas?: Schemas } };
    return found.components?.schemas ?? {};
  } catch (error) {
    // Completion is a help: the editor works without it.
    if (error instanceof ApiError) return {};
    throw error;
  }
}

class Editor implements Widget {
  private readonly view: EditorView;
  private readonly form: HTMLFormElement | null;
  private readonly stopped = new AbortController();

  constructor(
    host: HTMLElement,
    schemas: Schemas,
    private readonly help: Help,
    private readonly yaml: Yaml,
  ) {
    const area = host.querySelector("textarea");
    if (!area) throw new Error("The editor has no textarea.");
    this.form = host.closest("form");
    const label = host.querySelector("label")?.textContent?.trim() ?? "YAML";
    const box = el("div");
    host.append(box);
    const root = box.attachShadow({ mode: "open" });
    const top = schemas[host.dataset["schemaName"] ?? ""] ?? {};
    this.view = new EditorView({
      root,
      parent: root,
      state: EditorState.create({
        doc: area.value,
        extensions: [
          lineNumbers(),
          history(),
          drawSelection(),
          highlightActiveLine(),
          help.helps(schemas, top, yaml.faultsOf),
          placeholder("name: my-training"),
          keymap.of([...historyKeymap, ...defaultKeymap]),
          EditorView.contentAttributes.of({ "aria-label": label, spellcheck: "false" }),
          EditorView.lineWrapping,
          EditorView.domEventHandlers({ beforeinput: typeOver }),
          EditorView.updateListener.of((update) => {
            if (!update.docChanged) return;
            const text = update.state.doc.toString();
            if (text === area.value) return;
            area.value = text;
            area.dispatchEvent(new Event("input", { bubbles: true }));
          }),
          LOOK,
        ],
      }),
    });
    area.hidden = true;
    area.addEventListener("sooner:write", () => this.write(area.value), { signal: this.stopped.signal });
    this.form?.addEventListener("submit", this.onSubmit);
  }

  destroy(): void {
    this.stopped.abort();
    this.form?.removeEventListener("submit", this.onSubmit);
    this.view.destroy();
  }

  /** Take a text that was written elsewhere on the page, as one change that can be undone. */
  private write(text: string): void {
    const old = this.view.state.doc.toString();
    let from = 0;
    while (from < Math.min(old.length, text.length) && old[from] === text[from]) from += 1;
    let same = 0;
    while (same < Math.min(old.length, text.length) - from && old.at(-1 - same) === text.at(-1 - same)) same += 1;
    this.view.dispatch({ changes: { from, to: old.length - same, insert: text.slice(from, text.length - same) } });
  }

  private readonly onSubmit = (event: SubmitEvent): void => {
    const button = event.submitter;
    if (!this.form || this.form.dataset["submit"] === undefined) return;
    event.preventDefault();
    if (button?.getAttribute("aria-busy")) return;
    button?.setAttribute("aria-busy", "true");
    void this.send(button?.dataset["plan"], button?.dataset["submitTo"]).finally(() => button?.removeAttribute("aria-busy"));
  };

  private async send(plan: string | undefined, submit: string | undefined): Promise<void> {
    const text = this.view.state.doc.toString();
    this.say(null);
    this.help.showFaults(this.view, []);
    this.showPlan([]);
    const broken = this.yaml.faultsOf(text);
    if (broken.length) {
      this.fail("The text is not YAML.", broken);
      return;
    }
    try {
      const { body, faults } = this.yaml.bodyOf(text);
      if (faults.length) {
        this.fail("The job cannot be submitted.", faults);
        return;
      }
      const answer: unknown = await (await call("POST", plan ?? submit ?? "v1/jobs", body)).json();
      if (plan) this.showPlan((answer as Plans).plans);
      else location.assign(url(pageOf(answer)));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.fail(error.message, error.faults.map((fault) => this.yaml.located(text, fault.pointer ?? "", fault.detail)));
    }
  }

  private fail(message: string, faults: readonly TextFault[]): void {
    this.help.showFaults(this.view, faults);
    const list = el("ul");
    for (const fault of faults) list.append(el("li", {}, `Line ${this.view.state.doc.lineAt(fault.from).number}: ${fault.message}`));
    this.say(el("div", { class: "error" }, el("strong", {}, message), faults.length ? list : null));
    const first = faults[0];
    if (first) this.view.dispatch({ selection: { anchor: first.from }, scrollIntoView: true });
    this.view.focus();
  }

  private say(content: Node | null): void {
    this.form?.querySelector("[data-errors]")?.replaceChildren(...(content ? [content] : []));
  }

  /** Show what would happen; nothing: that is not known. */
  private showPlan(plans: readonly Plan[]): void {
    const result = document.querySelector<HTMLElement>("[data-plan-result]");
    const section = result?.closest("section");
    result?.replaceChildren(...plans.map(planCard));
    if (!section) return;
    section.hidden = !plans.length;
    if (plans.length) section.scrollIntoView({ block: "nearest" });
  }
}

/** The page of what was submitted: the job, or the list if there are several. */
function pageOf(answer: unknown): string {
  const { id } = answer as { id?: number };
  return id === undefined ? "jobs" : `jobs/${id}`;
}

export async function mount(host: HTMLElement): Promise<Widget> {
  const [schemas, help, yaml] = await Promise.all([schemasAt(host.dataset["schema"]), import("./editor-help"), import("./yaml-text")]);
  return new Editor(host, schemas, help, yaml);
}
