// Light, dark, or as the system has it; remembered in this browser.

const KEY = "weightfs-theme";
const WORDS = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };

/// Makes `button` a switch of the theme.
export function themeSwitch(button) {
  let theme = read();
  const apply = () => {
    document.documentElement.dataset.theme = theme;
    button.textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
    button.setAttribute("aria-label", WORDS[theme]);
    button.title = WORDS[theme];
  };
  button.addEventListener("click", () => {
    const order = Object.keys(WORDS);
    theme = order[(order.indexOf(theme) + 1) % order.length];
    keep(theme);
    apply();
  });
  apply();
}

function read() {
  try {
    const kept = localStorage.getItem(KEY);
    return Object.hasOwn(WORDS, kept ?? "") ? kept : "auto";
  } catch {
    return "auto";
  }
}

function keep(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // A browser that keeps nothing: the theme is for this visit.
  }
}
