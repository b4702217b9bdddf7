// Colours that people with any colour vision tell apart (Okabe and Ito). After eight families the same colours come hatched.

const PALETTE = ["#56b4e9", "#e69f00", "#2fae86", "#f0e442", "#cc79a7", "#3f88c5", "#e2703a", "#b8a1e3"];
const PATTERNS = 3;

/** Colours of the page, which canvas needs as values. */
export interface Ink {
  panel: string;
  sunken: string;
  text: string;
  muted: string;
  line: string;
  accent: string;
  bad: string;
  warn: string;
  calm: string;
  hidden: string;
  font: string;
}

/** Read the page's colours as they are now. */
export function inkOf(element: HTMLElement): Ink {
  const probe = document.createElement("span");
  element.append(probe);
  const read = (name: string): string => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const ink = {
    panel: read("panel"),
    sunken: read("sunken"),
    text: read("text"),
    muted: read("muted"),
    line: read("line"),
    accent: read("accent"),
    bad: read("bad"),
    warn: read("warn"),
    calm: read("calm"),
    hidden: read("line-strong"),
    font: getComputedStyle(element).fontFamily,
  };
  probe.remove();
  return ink;
}

function hatch(context: CanvasRenderingContext2D, draw: (tile: CanvasRenderingContext2D) => void): CanvasPattern | string {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const inside = tile.getContext("2d");
  if (!inside) return "transparent";
  draw(inside);
  return context.createPattern(tile, "repeat") ?? "transparent";
}

const striped = new Map<string, CanvasPattern | string>();

/** Diagonal lines. */
export function stripes(context: CanvasRenderingContext2D, colour: string, falling = false): CanvasPattern | string {
  const key = `${colour}${falling ? "f" : "r"}`;
  const known = striped.get(key);
  if (known) return known;
  const made = hatch(context, (tile) => {
    tile.strokeStyle = colour;
    tile.lineWidth = 1.6;
    tile.beginPath();
    for (const shift of [-8, 0, 8]) {
      tile.moveTo(shift, falling ? 0 : 8);
      tile.lineTo(shift + 8, falling ? 8 : 0);
    }
    tile.stroke();
  });
  striped.set(key, made);
  return made;
}

function dots(context: CanvasRenderingContext2D, colour: string): CanvasPattern | string {
  return hatch(context, (tile) => {
    tile.fillStyle = colour;
    for (const [x, y] of [[2, 2], [6, 6]] as const) tile.fillRect(x - 1, y - 1, 2, 2);
  });
}

/** Which look each family has. A look that was given stays. */
export class Looks {
  private readonly places = new Map<string, number>();
  private readonly patterns = new Map<number, CanvasPattern | string>();

  /** Give looks to new keys, the most frequent first. Were there any? */
  assign(counts: ReadonlyMap<string, number>): boolean {
    const fresh = [...counts].filter(([key]) => !this.places.has(key));
    fresh.sort((left, right) => right[1] - left[1] || (left[0] < right[0] ? -1 : 1));
    for (const [key] of fresh) this.places.set(key, this.places.size);
    return fresh.length > 0;
  }

  colour(key: string): string {
    return PALETTE[(this.places.get(key) ?? 0) % PALETTE.length] as string;
  }

  /** What is drawn over the colour; null: nothing. */
  pattern(context: CanvasRenderingContext2D, key: string): CanvasPattern | string | null {
    const number = Math.floor((this.places.get(key) ?? 0) / PALETTE.length) % PATTERNS;
    if (number === 0) return null;
    let found = this.patterns.get(number);
    if (!found) {
      found = number === 1 ? stripes(context, "rgb(0 0 0 / .35)") : dots(context, "rgb(0 0 0 / .45)");
      this.patterns.set(number, found);
    }
    return found;
  }
}
