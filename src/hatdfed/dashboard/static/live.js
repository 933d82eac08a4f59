// Events from the dashboard while the page is looked at. A browser keeps few connections to one place, so a hidden tab
// gives its own back.
import { byId } from "./dom.js";

export function watch(address, onNews) {
  let source = null;
  const say = (text, state) => {
    const line = byId("live");
    if (!line) return;
    line.textContent = text;
    line.dataset.state = state;
  };
  const open = () => {
    if (source) return;
    source = new EventSource(address);
    source.onopen = () => say("Live", "on");
    source.onmessage = (event) => onNews(JSON.parse(event.data));
    source.onerror = () => {
      const isOver = source.readyState === EventSource.CLOSED;
      say(isOver ? "Not live any more. Reload the page to try again." : "Connection lost, trying again …", "off");
    };
  };
  const close = () => { source?.close(); source = null; };
  const follow = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", close);
  addEventListener("pageshow", follow);
  follow();
  return () => {
    document.removeEventListener("visibilitychange", follow);
    removeEventListener("pageshow", follow);
    close();
    say("", "");
  };
}
