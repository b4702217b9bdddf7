// Bundles src/ into a folder (static/, or the argument). Equal sources and equal package-lock.json give equal bytes.
import { build } from "esbuild";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const out = path.resolve(process.argv[2] ?? path.join(here, "static"));

/** The packages whose files are in the bundles, as folders. */
function packagesOf(metafile) {
  const found = new Set();
  for (const output of Object.values(metafile.outputs)) {
    for (const input of Object.keys(output.inputs)) {
      const match = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
      if (match) found.add(match[1]);
    }
  }
  return [...found].sort();
}

/** The name, version, licence and licence text of each package. */
function licences(names) {
  const parts = names.map((name) => {
    const folder = path.join(here, "node_modules", name);
    const about = JSON.parse(readFileSync(path.join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    if (!file) throw new Error(`${name} has no file with its licence`);
    const text = readFileSync(path.join(folder, file), "utf8").replace(/\r\n/g, "\n").trim();
    return `${name} ${about.version} (${about.license})\n\n${text}\n`;
  });
  const rule = `\n${"-".repeat(79)}\n\n`;
  return `The files of this folder contain parts of these packages.\n${rule}${parts.join(rule)}`;
}

rmSync(path.join(out, "chunks"), { recursive: true, force: true });
if (!existsSync(out)) mkdirSync(out, { recursive: true });
const result = await build({
  absWorkingDir: here,
  entryPoints: { core: "src/core.ts", app: "src/app.css", icon: "src/icon.svg" },
  loader: { ".svg": "copy" },
  outdir: out,
  bundle: true,
  splitting: true,
  format: "esm",
  target: "es2023",
  minify: true,
  charset: "utf8",
  legalComments: "none",
  chunkNames: "chunks/[name]-[hash]",
  metafile: true,
  logLevel: "warning",
});
writeFileSync(path.join(out, "LICENSES.txt"), licences(packagesOf(result.metafile)));
