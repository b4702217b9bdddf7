// Modal dialogs. showModal() makes the rest of the page inert, so the focus stays inside; it returns where it was on closing.
import { el } from "./dom";

function open(dialog: HTMLDialogElement): Promise<string> {
  const before = document.activeElement;
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
      resolve(dialog.returnValue);
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close("");
    });
  });
}

/** Ask before a change. The safe answer has the focus. */
export async function confirmed(question: string, action: string, danger: boolean): Promise<boolean> {
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", { id: "dialog-title" }, question),
    el(
      "div",
      { class: "toolbar end" },
      el("button", { value: "", autofocus: true }, "Back"),
      el("button", { value: "yes", class: danger ? "danger" : "primary" }, action),
    ),
  );
  return (await open(el("dialog", { "aria-labelledby": "dialog-title" }, form))) === "yes";
}

/** A dialog with a title and content, which Escape or the button closes. */
export async function showDialog(title: string, content: Node): Promise<void> {
  const close = el("form", { method: "dialog", class: "toolbar end" }, el("button", { autofocus: true }, "Close"));
  await open(el("dialog", { "aria-labelledby": "dialog-title" }, el("h2", { id: "dialog-title" }, title), content, close));
}
