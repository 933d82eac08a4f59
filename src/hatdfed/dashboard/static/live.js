// Events from the dashboard while the page is visible. Browsers allow few connections to one host, so a hidden tab closes
// its own.
import { byId } from "./dom.js";

export function watch(address, onEvent) {
  let source = null;
  const setStatus = (text, state) => {
    const line = byId("live");
    if (!line) return;
    line.textContent = text;
    line.dataset.state = state;
  };
  const open = () => {
    if (source) return;
    source = new EventSource(address);
    source.onopen = () => setStatus("Live", "on");
    source.onmessage = (event) => onEvent(JSON.parse(event.data));
    source.onerror = () => {
      const isOver = source.readyState === EventSource.CLOSED;
      setStatus(isOver ? "Not live any more. Reload the page to try again." : "Connection lost, trying again …", "off");
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
    setStatus("", "");
  };
}
