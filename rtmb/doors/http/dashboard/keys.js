// Keys, and the start

const SHORTCUTS = {
  "/": () => $("pattern").focus(),
  p: () => $("subject").focus(),
  f: () => $("filter").focus(),
  " ": pause,
  x: clearStream,
  e: () => $("problems").click(),
  t: switchTheme,
  "?": () => $("keys").showModal(),
};

document.addEventListener("keydown", (e) => {
  const typing = e.target.matches("input, textarea");
  if (e.key === "Escape" && typing) { e.target.blur(); return; }
  if (typing || e.ctrlKey || e.metaKey || e.altKey || document.querySelector("dialog[open]")) return;
  if (e.key === " " && e.target.matches("button, .scroll")) return;
  const act = SHORTCUTS[e.key];
  if (act) { e.preventDefault(); act(); }
});

$("help").addEventListener("click", SHORTCUTS["?"]);
$("keys-close").addEventListener("click", () => $("keys").close());
$("theme").addEventListener("click", switchTheme);
dark.addEventListener("change", applyTheme);
$("filter").addEventListener("input", poll);

applyTheme();
sortable("topics");
sortable("connections");
poll();
