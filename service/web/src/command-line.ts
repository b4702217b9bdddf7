// A command as people type it, and as the list of its words. No shell is involved: only quotes and backslashes have a meaning.

/** The words of a line; null where a quote is not closed. */
export function wordsOf(line: string): string[] | null {
  const words: string[] = [];
  let word = "";
  let begun = false;
  let quote = "";
  for (let place = 0; place < line.length; place += 1) {
    const letter = line[place] as string;
    if (quote) {
      if (letter === quote) quote = "";
      else if (letter === "\\" && quote === '"' && /["\\]/.test(line[place + 1] ?? "")) word += line[(place += 1)];
      else word += letter;
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      begun = true;
    } else if (/\s/.test(letter)) {
      if (begun) words.push(word);
      word = "";
      begun = false;
    } else {
      word += letter === "\\" && place + 1 < line.length ? line[(place += 1)] : letter;
      begun = true;
    }
  }
  if (begun) words.push(word);
  return quote ? null : words;
}

/** The line whose words these are. */
export function lineOf(words: readonly string[]): string {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`)).join(" ");
}
