// Search in a site that is opened from a folder: browsers refuse workers there, so the script runs in a hidden frame.
// Messages between page and frame take the way that they would take between page and worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.inside = new Promise((resolve) => {
        this.frame.addEventListener("load", () => this.start(new URL(address, location.href).href, resolve), { once: true });
      });
      document.body.appendChild(this.frame);
    }

    start(address, resolve) {
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = address;
      script.addEventListener("load", () => resolve(inside));
      inside.document.body.appendChild(script);
    }

    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
