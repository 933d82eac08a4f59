// Light or dark: what the reader chose before, else what the system says. Runs before the page is painted.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const kept = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const keep = (theme) => { try { localStorage.setItem("theme", theme); } catch { /* private window */ } };
  const apply = (forced) => {
    root.dataset.theme = forced ?? kept() ?? (system.matches ? "dark" : "light");
    const button = document.getElementById("theme");
    if (button) {
      button.hidden = false;
      button.textContent = root.dataset.theme === "dark" ? "Light" : "Dark";
    }
    document.dispatchEvent(new Event("themechange"));
  };
  apply();
  system.addEventListener("change", () => apply());
  addEventListener("beforeprint", () => apply("light")); // paper is light
  addEventListener("afterprint", () => apply());
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      keep(root.dataset.theme === "dark" ? "light" : "dark");
      apply();
    });
  });
})();
