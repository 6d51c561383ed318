// Building and keeping DOM nodes. Text always goes in as text: nothing here parses HTML, and nothing else here does.

const SVG = "http://www.w3.org/2000/svg";

/// An element. `props` sets properties of the node; `class`, `role`, `aria-…` and `data-…` are set as attributes, and
/// functions named `on…` as listeners. Children are nodes or text; null and false are left out.
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/// The same for SVG, where every property is an attribute.
export function svg(tag, props, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props ?? {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (/^(class|role|for|aria-|data-)/.test(name)) node.setAttribute(name, value === true ? "" : value);
    else node[name] = value;
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/// Sets the text of a node, and leaves the node alone if it has it: what does not change is not laid out again, and not
/// read out again.
export function text(node, value) {
  const wanted = String(value);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/// Sets an attribute, or takes it away for null and false.
export function attr(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else {
    const wanted = value === true ? "" : String(value);
    if (node.getAttribute(name) !== wanted) node.setAttribute(name, wanted);
  }
}

/// Sets a property of the inline style, through the object model, which the content security policy allows.
export function style(node, name, value) {
  if (node.style.getPropertyValue(name) !== value) node.style.setProperty(name, value);
}

/// Makes the children of `parent` those of `items`, in their order. A node whose key was there before is kept and
/// updated, so that focus and selection stay where they are.
export function keyed(parent, items, key, create, update) {
  const before = parent.keyed ?? new Map();
  const now = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    if (now.has(name)) continue;
    const node = before.get(name) ?? create(item);
    before.delete(name);
    now.set(name, node);
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
    update(node, item);
  }
  for (const node of before.values()) node.remove();
  parent.keyed = now;
}

/// Runs `draw` once in the next frame, however often it is asked to.
export function framed(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}
