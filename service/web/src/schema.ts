// As much of JSON Schema as completion needs.

export interface Schema {
  $ref?: string;
  description?: string;
  properties?: Record<string, Schema>;
  additionalProperties?: Schema | boolean;
  items?: Schema;
  enum?: unknown[];
  const?: unknown;
  type?: string;
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
}

export type Schemas = Record<string, Schema>;

/** The schemas that a value may have: references and alternatives resolved. */
function forms(schemas: Schemas, schema: Schema | undefined, depth = 0): Schema[] {
  if (!schema || depth > 8) return [];
  if (schema.$ref) return forms(schemas, schemas[schema.$ref.split("/").pop() ?? ""], depth + 1);
  const more = [...(schema.anyOf ?? []), ...(schema.oneOf ?? []), ...(schema.allOf ?? [])];
  return [schema, ...more.flatMap((each) => forms(schemas, each, depth + 1))];
}

/** The schema below a path of keys. A list stands for its items. */
export function follow(schemas: Schemas, schema: Schema, path: readonly string[]): Schema {
  let at: Schema = schema;
  for (const key of path) {
    const all = forms(schemas, at).flatMap((each) => [each, ...forms(schemas, each.items)]);
    const inside = all.flatMap((each) => {
      const found = each.properties?.[key] ?? (typeof each.additionalProperties === "object" ? each.additionalProperties : undefined);
      return found ? [found] : [];
    });
    at = { anyOf: inside };
  }
  return at;
}

/** Names and schemas of the keys that an object may have. */
export function properties(schemas: Schemas, schema: Schema): [string, Schema][] {
  const all = forms(schemas, schema).flatMap((each) => [each, ...forms(schemas, each.items)]);
  return all.flatMap((each) => Object.entries(each.properties ?? {}));
}

/** The values that can be listed: of an enumeration, true and false. */
export function values(schemas: Schemas, schema: Schema): string[] {
  const found = forms(schemas, schema).flatMap((each) => {
    if (each.enum) return each.enum.map(String);
    if (each.const !== undefined) return [String(each.const)];
    return each.type === "boolean" ? ["true", "false"] : [];
  });
  return [...new Set(found)];
}
