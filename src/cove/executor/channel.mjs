// Frames between an executor and the runtime, as in channel.py: one byte of kind, four of length, the payload.

const MOST_RESULT_BYTES = 15 << 20;
const PIECE_CHARACTERS = 16384;
const PIECE_TOKENS = 400;
const TOKEN_CHARACTERS = 2000;
const MOST_DEPTH = 90;
const MOST_ERROR_CHARACTERS = 1 << 20;
const [CONTAINER_BYTES, TOKEN_BYTES] = [2048, 64];

export function frame(kind, payload = "") {
  const body = Buffer.from(payload, "utf8");
  const head = Buffer.alloc(5);
  head.write(kind, "latin1");
  head.writeUInt32BE(body.length, 1);
  return Buffer.concat([head, body]);
}

// Parts are text, or an array of pieces of JSON.
function message(kind, parts, isCut) {
  const frames = [frame(kind)];
  for (const [name, value] of Object.entries(parts)) {
    const isText = typeof value === "string";
    frames.push(frame(isText ? "T" : "J", name));
    const pieces = isText ? slices(value.toWellFormed(), PIECE_CHARACTERS) : value;
    for (const piece of pieces) frames.push(frame("+", piece));
  }
  frames.push(frame(".", isCut ? "!" : ""));
  return Buffer.concat(frames);
}

// A value as text and, if it is given, as the JSON that it stands for.
export function valueMessage(text, json) {
  let isCut = false;
  const parts = {};
  if (json !== undefined) {
    parts["application/json"] = jsonPieces(json);
    isCut = parts["application/json"] === null;
    if (isCut) delete parts["application/json"];
  }
  const width = /[^\x00-\xff]/.test(text) ? 4 : 1;
  parts["text/plain"] = text.slice(0, MOST_RESULT_BYTES / width);
  return message("V", parts, isCut || parts["text/plain"].length < text.length);
}

export function errorMessage(texts) {
  const parts = {};
  for (const [name, text] of Object.entries(texts)) parts[name] = text.slice(0, MOST_ERROR_CHARACTERS);
  return message("X", parts, Object.entries(texts).some(([name, text]) => parts[name].length < text.length));
}

// A pair of surrogates is one character, and stays one.
function* slices(text, size) {
  for (let at = 0; at < text.length; ) {
    let end = at + size;
    if (end < text.length && (text.charCodeAt(end - 1) & 0xfc00) === 0xd800) end -= 1;
    yield text.slice(at, end);
    at = end;
  }
}

function jsonPieces(value) {
  const pieces = [];
  let [piece, characters, size] = [[], 0, 0];
  for (const token of tokens(value, 0)) {
    piece.push(token.value);
    characters += token.characters;
    size += token.bytes;
    if (size > MOST_RESULT_BYTES || token.depth > MOST_DEPTH) return null;
    if (piece.length === PIECE_TOKENS || characters >= TOKEN_CHARACTERS) {
      pieces.push(JSON.stringify(piece));
      [piece, characters] = [[], 0];
    }
  }
  if (piece.length) pieces.push(JSON.stringify(piece));
  return pieces;
}

function* tokens(value, depth) {
  if (typeof value === "string") {
    yield* stringTokens(value, depth);
  } else if (value === null || typeof value !== "object") {
    yield { value, characters: 0, bytes: TOKEN_BYTES, depth };
  } else {
    const isArray = Array.isArray(value);
    yield { value: isArray ? "[" : "{", characters: 1, bytes: CONTAINER_BYTES, depth };
    if (depth > MOST_DEPTH) return;
    for (const [key, inner] of isArray ? value.entries() : Object.entries(value)) {
      if (!isArray) yield* stringTokens(key, depth);
      yield* tokens(inner, depth + 1);
    }
    yield { value: "]", characters: 1, bytes: 0, depth };
  }
}

function* stringTokens(whole, depth) {
  const text = whole.toWellFormed();
  const token = (part) => ({ value: `"${part}`, characters: part.length, bytes: TOKEN_BYTES + 2 * part.length, depth });
  if (text.length < TOKEN_CHARACTERS) {
    yield token(text);
    return;
  }
  yield { value: "(", characters: 1, bytes: TOKEN_BYTES, depth };
  for (const part of slices(text, TOKEN_CHARACTERS)) yield token(part);
  yield { value: "]", characters: 1, bytes: 0, depth };
}
