// The search runs in a worker, which browsers refuse to start for pages of a folder (file://). There a frame stands in.
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const base = new URL(url, location.href);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = (...urls) => urls.reduce((before, next) => before.then(() => load(next)), Promise.resolve());
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inner.document.createElement("script");
          script.src = new URL(source, base).href;
          script.onload = resolve;
          script.onerror = reject;
          inner.document.body.appendChild(script);
        });
      this.inner = inner;
      this.loaded = load(base);
    }

    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }

    set onmessage(listener) {
      this.addEventListener("message", listener);
    }
  };
}
