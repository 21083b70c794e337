// Draws the page again when the server says that something has changed. A hidden tab is quiet. Without this,
// every page works: it is just not live.
(() => {
  const place = document.querySelector("main[data-live]");
  if (!place) return;
  const status = document.getElementById("live");
  let source = null;
  let busy = false;

  const say = (text) => { if (status.textContent !== text) status.textContent = text; };

  // A page in which something is selected or being filled in is left alone.
  const inUse = () => {
    const main = document.querySelector("main");
    const active = document.activeElement;
    return main.querySelector("input:checked") !== null
      || (main.contains(active) && active.matches("input, select, textarea"))
      || (document.getSelection()?.toString() ?? "") !== "";
  };

  const draw = async () => {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    const found = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = found.querySelector("main[data-mark]");
    if (!main) throw new Error("another page has answered");
    if (inUse()) return;
    const active = document.activeElement;
    const focused = document.querySelector("main").contains(active) ? active.getAttribute("href") : null;
    for (const each of document.querySelectorAll("details[open][id]")) {
      found.getElementById(each.id)?.setAttribute("open", "");
    }
    document.title = found.title;
    document.querySelector("main").replaceWith(main);
    document.getElementById("asked").replaceWith(found.getElementById("asked"));
    if (focused) [...main.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
  };

  const hear = async (event) => {
    say("live");
    if (busy || event.data === document.querySelector("main").dataset.mark) return;
    busy = true;
    try { await draw(); } catch { say("no connection"); } finally { busy = false; }
  };

  const open = () => {
    if (source) return;
    source = new EventSource(place.dataset.live);
    source.onmessage = hear;
    source.onerror = () => say("no connection");
  };

  const close = () => { source?.close(); source = null; say("paused"); };

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", () => { if (!document.hidden) open(); });
  if (!document.hidden) open();
})();
