// Tables that sort and filter in place. The order and the filter survive a refresh.
import { all, el } from "./dom";

interface Order {
  column: number;
  down: boolean;
}

const orders = new Map<string, Order>();

function value(row: HTMLTableRowElement, column: number): string {
  const cell = row.cells[column];
  return cell?.dataset["value"] ?? cell?.querySelector("time")?.dateTime ?? cell?.textContent?.trim() ?? "";
}

function compare(left: string, right: string, kind: string): number {
  if (kind !== "number") return left.localeCompare(right, undefined, { numeric: true });
  const [a, b] = [Number.parseFloat(left), Number.parseFloat(right)];
  // Rows without a number come last in either direction; the caller never flips these.
  return Number.isNaN(a) || Number.isNaN(b) ? Number(Number.isNaN(a)) - Number(Number.isNaN(b)) : a - b;
}

function apply(table: HTMLTableElement, order: Order): void {
  const head = table.tHead?.rows[0]?.cells[order.column];
  const body = table.tBodies[0];
  if (!head || !body) return;
  const kind = head.dataset["sort"] ?? "text";
  const empty = (text: string) => text === "" || text === "–" || (kind === "number" && Number.isNaN(Number.parseFloat(text)));
  const rows = [...body.rows].map((row) => ({ row, key: value(row, order.column) }));
  rows.sort((left, right) => {
    const missing = Number(empty(left.key)) - Number(empty(right.key));
    return missing || compare(left.key, right.key, kind) * (order.down ? -1 : 1);
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

/** Make the tables below a node sortable, and repeat what the reader chose. */
export function prepareTables(below: ParentNode): void {
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
