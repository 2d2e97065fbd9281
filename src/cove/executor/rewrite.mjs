// From what the user typed to a script whose top-level names outlive it: every declaration at the top becomes
// an assignment to a global, the last expression is what the script gives back, and `await` is allowed everywhere.

import * as acorn from "acorn";
import * as walk from "acorn-walk";

const OPTIONS = { ecmaVersion: "latest", allowAwaitOutsideFunction: true, allowReturnOutsideFunction: false, allowHashBang: true };

export function rewrite(code) {
  const program = parse(code);
  const edits = [];
  const names = new Set();
  const hoisted = [];
  for (const node of program.body) rewriteStatement(node, code, edits, names, hoisted);
  rewriteVars(program, code, edits, names);
  const last = program.body.at(-1);
  if (last?.type === "ExpressionStatement") {
    edits.push({ start: last.start, end: last.start, text: "return [await (" });
    const end = code[last.end - 1] === ";" ? last.end - 1 : last.end;
    edits.push({ start: end, end: last.end, text: "\n)];" });
  }
  const body = apply(code, edits);
  return { script: `(async () => {${hoisted.join("")}${body}\n})()`, names: [...names] };
}

function parse(code) {
  try {
    return acorn.parse(code, { ...OPTIONS, sourceType: "module" });
  } catch (error) {
    // Sloppy code, such as octal literals or `with`, is no module.
    try {
      return acorn.parse(code, { ...OPTIONS, sourceType: "script" });
    } catch {
      throw Object.assign(new SyntaxError(error.message), { stack: `SyntaxError: ${error.message}` });
    }
  }
}

function rewriteStatement(node, code, edits, names, hoisted) {
  switch (node.type) {
    case "VariableDeclaration":
      if (node.kind !== "var") edits.push({ start: node.start, end: node.end, text: assignments(node, code, names) + ";" });
      break;
    case "ClassDeclaration":
      names.add(node.id.name);
      edits.push({ start: node.start, end: node.start, text: `${node.id.name} = ` }, { start: node.end, end: node.end, text: ";" });
      break;
    case "FunctionDeclaration":
      names.add(node.id.name);
      hoisted.push(`${node.id.name} = ${code.slice(node.start, node.end)};`);
      edits.push({ start: node.start, end: node.end, text: ";" });
      break;
    case "ImportDeclaration":
      edits.push({ start: node.start, end: node.end, text: importText(node, names) });
      break;
    case "ExportNamedDeclaration":
      if (node.declaration) {
        edits.push({ start: node.start, end: node.declaration.start, text: "" });
        rewriteStatement(node.declaration, code, edits, names, hoisted);
      } else {
        edits.push({ start: node.start, end: node.end, text: ";" });
      }
      break;
    case "ExportDefaultDeclaration":
      edits.push({ start: node.start, end: node.declaration.start, text: "" });
      break;
  }
}

// `var` belongs to the whole script wherever it stands, except inside functions.
function rewriteVars(program, code, edits, names) {
  walk.ancestor(program, {
    VariableDeclaration(node, _state, ancestors) {
      if (node.kind !== "var" || ancestors.some((each) => /Function/.test(each.type) || each.type === "StaticBlock")) return;
      const parent = ancestors.at(-2);
      const isHead = (parent.type === "ForInStatement" || parent.type === "ForOfStatement") && parent.left === node;
      if (isHead) {
        collectNames(node.declarations[0].id, names);
        edits.push({ start: node.start, end: node.end, text: code.slice(node.declarations[0].id.start, node.declarations[0].id.end) });
      } else {
        const isInFor = parent.type === "ForStatement";
        edits.push({ start: node.start, end: node.end, text: assignments(node, code, names) + (isInFor ? "" : ";") });
      }
    },
  });
}

function assignments(node, code, names) {
  const parts = node.declarations.map(({ id, init }) => {
    collectNames(id, names);
    const target = code.slice(id.start, id.end);
    if (!init) return node.kind === "var" ? `${target} = ${target}` : `${target} = undefined`;
    const value = code.slice(init.start, init.end);
    // A function or class without a name takes that of the variable, as in a declaration.
    return id.type === "Identifier" ? `${target} = ${value}` : `(${target} = ${value})`;
  });
  return node.declarations.length === 1 ? parts[0] : `void (${parts.map((part) => `(${part})`).join(", ")})`;
}

function collectNames(pattern, names) {
  switch (pattern?.type) {
    case "Identifier":
      names.add(pattern.name);
      break;
    case "ObjectPattern":
      for (const property of pattern.properties) collectNames(property.value ?? property.argument, names);
      break;
    case "ArrayPattern":
      for (const element of pattern.elements) collectNames(element, names);
      break;
    case "AssignmentPattern":
      collectNames(pattern.left, names);
      break;
    case "RestElement":
      collectNames(pattern.argument, names);
      break;
  }
}

function importText(node, names) {
  const source = `await import(${JSON.stringify(node.source.value)})`;
  if (!node.specifiers.length) return `${source};`;
  const parts = node.specifiers.map((specifier) => {
    const name = specifier.local.name;
    names.add(name);
    if (specifier.type === "ImportNamespaceSpecifier") return `${name} = __module`;
    const imported = specifier.type === "ImportDefaultSpecifier" ? "default" : (specifier.imported.name ?? specifier.imported.value);
    return `${name} = __module[${JSON.stringify(imported)}]`;
  });
  return `{ const __module = ${source}; ${parts.join("; ")}; }`;
}

function apply(code, edits) {
  let result = code;
  const sorted = edits.map((edit, index) => ({ ...edit, index })).sort((a, b) => b.start - a.start || b.index - a.index);
  for (const { start, end, text } of sorted) result = result.slice(0, start) + text + result.slice(end);
  return result;
}
