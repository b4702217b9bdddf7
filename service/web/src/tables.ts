// Tables that sort and filter in place. The order and the filter survive a refresh.
import { all, el } from "./dom";

interface Order {
  column: number;
  down: boolean;
}

const COLLATOR = new Intl.Collator(undefined, { numeric: true });
const orders = new Map<string, Order>();

function value(row: HTMLTableRowElement, column: number): string {
  const cell = row.cells[column];
  return cell?.dataset["value"] ?? cell?.querySelector("time")?.dateTime ?? cell?.textContent?.trim() ?? "";
}

/** The number in a cell such as "1,234", "× 1.30" or "80%"; NaN if there is none. */
function numberOf(text: string): number {
  const plain = text === "" ? Number.NaN : Number(text);
  return Number.isNaN(plain) ? Number.parseFloat(text.replace(/[^\d.-]/g, "")) : plain;
}

function apply(table: HTMLTableElement, order: Order): void {
  const head = table.tHead?.rows[0]?.cells[order.column];
  const body = table.tBodies[0];
  if (!head || !body) return;
  const numeric = head.dataset["sort"] === "number";
  const rows = [...body.rows].map((row) => {
    const text = value(row, order.column);
    const size = numeric ? numberOf(text) : 0;
    return { row, text, size, missing: Number(text === "" || text === "–" || Number.isNaN(size)) };
  });
  rows.sort((left, right) => {
    // Rows without a value come last in either direction.
    if (left.missing || right.missing) return left.missing - right.missing;
    return (numeric ? left.size - right.size : COLLATOR.compare(left.text, right.text)) * (order.down ? -1 : 1);
  });
  if (rows.some(({ row }, place) => body.rows[place] !== row)) body.append(...rows.map(({ row }) => row));
  for (const cell of table.tHead?.rows[0]?.cells ?? []) cell.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
}

function sortable(table: HTMLTableElement): void {
  for (const head of table.tHead?.rows[0]?.cells ?? []) {
    if (head.dataset["sort"] === "none" || !head.textContent?.trim() || head.querySelector("button")) continue;
    const button = el("button", { type: "button", class: "sort" });
    button.append(...head.childNodes);
    head.append(button);
  }
  const order = orders.get(table.id);
  if (table.id && order) apply(table, order);
}

function onSort(event: Event): void {
  const button = (event.target as Element).closest?.("button.sort");
  const head = button?.closest("th");
  const table = head?.closest("table");
  if (!head || !table) return;
  const down = head.getAttribute("aria-sort") === "ascending" || (!head.hasAttribute("aria-sort") && head.dataset["sort"] === "number");
  const order = { column: head.cellIndex, down };
  orders.set(table.id, order);
  apply(table, order);
}

function filter(input: HTMLInputElement, within: ParentNode): void {
  const table = within.querySelector<HTMLTableElement>(`#${CSS.escape(input.dataset["filter"] ?? "")}`);
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of table?.tBodies[0]?.rows ?? []) {
    const text = row.textContent?.toLowerCase() ?? "";
    row.hidden = !words.every((word) => text.includes(word));
    if (!row.hidden) shown += 1;
  }
  const count = document.getElementById(`${input.dataset["filter"]}-count`);
  if (count) count.textContent = words.length ? `${shown} of ${table?.tBodies[0]?.rows.length ?? 0} rows` : "";
}

/** The words of a heading, without the small print beside them. */
function nameOf(head: HTMLTableCellElement): string {
  const words = [...(head.querySelector("button") ?? head).childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
  return words.map((node) => node.textContent).join("").trim();
}

/** Name each cell after its column: a narrow page shows a row as a block of named values. */
function named(table: HTMLTableElement): void {
  const names = [...(table.tHead?.rows[0]?.cells ?? [])].map(nameOf);
  if (!names.length) return;
  for (const body of table.tBodies)
    for (const row of body.rows)
      for (const cell of row.cells) {
        cell.dataset["name"] = names[cell.cellIndex] ?? "";
        cell.classList.toggle("nothing", ["", "–"].includes(cell.textContent?.trim() ?? ""));
      }
  table.classList.add("named");
}

/** Make the tables below a node sortable, name their cells, and repeat what the reader chose. */
export function prepareTables(below: ParentNode): void {
  for (const table of all<HTMLTableElement>(below, "table.data")) named(table);
  for (const table of all<HTMLTableElement>(below, "table[data-sortable]")) sortable(table);
  for (const input of all<HTMLInputElement>(document, "input[data-filter]")) if (input.value) filter(input, below);
}

export function installTables(): void {
  document.addEventListener("click", onSort);
  document.addEventListener("input", (event) => {
    const input = event.target;
    if (input instanceof HTMLInputElement && input.dataset["filter"] !== undefined) filter(input, document);
  });
}
