// What helps to write YAML: colours, completion from a schema, faults at their lines. A chunk of its own, as is the parser.
import { autocompletion, completionKeymap, type Completion, type CompletionContext, type CompletionResult } from "@codemirror/autocomplete";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { type Diagnostic, lintGutter, linter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import type { Extension } from "@codemirror/state";
import { type EditorView, keymap } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { type Schema, type Schemas, follow, properties, values } from "./schema";

const COLOURS = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--accent)" },
  { tag: [tags.string, tags.content], color: "var(--text)" },
  { tag: [tags.number, tags.bool, tags.null, tags.keyword], color: "var(--good)" },
  { tag: tags.comment, color: "var(--muted)", fontStyle: "italic" },
  { tag: [tags.punctuation, tags.separator], color: "var(--muted)" },
]);

/** The keys above a line that enclose it, by their indentation. */
function enclosing(context: CompletionContext, number: number, indent: number): string[] {
  const path: string[] = [];
  let least = indent;
  for (let line = number - 1; line >= 1 && least > 0; line -= 1) {
    const found = /^(\s*(?:- )?)([\w-]+):/.exec(context.state.doc.line(line).text);
    if (!found || (found[1] as string).length >= least) continue;
    path.unshift(found[2] as string);
    least = (found[1] as string).length;
  }
  return path;
}

function complete(schemas: Schemas, top: Schema) {
  return (context: CompletionContext): CompletionResult | null => {
    const line = context.state.doc.lineAt(context.pos);
    const before = line.text.slice(0, context.pos - line.from);
    const value = /^(\s*(?:- )?)([\w-]+):\s+([\w.-]*)$/.exec(before);
    if (value) {
      const path = [...enclosing(context, line.number, (value[1] as string).length), value[2] as string];
      const options: Completion[] = values(schemas, follow(schemas, top, path)).map((each) => ({ label: each, type: "enum" }));
      return options.length ? { from: context.pos - (value[3] as string).length, options } : null;
    }
    const key = /^(\s*(?:- )?)([\w-]*)$/.exec(before);
    if (!key || (!key[2] && !context.explicit)) return null;
    const indent = (key[1] as string).length;
    const inside = follow(schemas, top, enclosing(context, line.number, indent));
    const options: Completion[] = properties(schemas, inside).map(([name, schema]) => ({
      label: name,
      apply: `${name}: `,
      type: "property",
      ...(schema.description ? { info: schema.description } : {}),
    }));
    return options.length ? { from: context.pos - (key[2] as string).length, options } : null;
  };
}

/** Everything that helps, for documents of one schema. */
export function helps(schemas: Schemas, top: Schema, faults: (text: string) => Diagnostic[]): Extension {
  return [
    indentUnit.of("  "),
    yaml(),
    syntaxHighlighting(COLOURS),
    autocompletion({ override: [complete(schemas, top)] }),
    linter((view) => faults(view.state.doc.toString())),
    lintGutter(),
    keymap.of([...completionKeymap, ...lintKeymap]),
  ];
}

/** Show faults at their places. */
export function showFaults(view: EditorView, faults: readonly Diagnostic[]): void {
  view.dispatch(setDiagnostics(view.state, [...faults]));
}
