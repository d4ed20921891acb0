// The search of the site runs in a worker. Browsers refuse to start one for a page that was opened from a folder, so
// there it runs in a hidden frame, whose window has what the search uses of a worker: messages and importScripts.
// Its name keeps the theme from loading its own from elsewhere.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = Object.assign(document.createElement("iframe"), { hidden: true, srcdoc: "<body>" });
      this.terminate = () => frame.remove();
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = frame.contentDocument.createElement("script");
          frame.contentDocument.body.append(Object.assign(script, { src: source, onload: resolve, onerror: reject }));
        });
      const loaded = new Promise((resolve) => (frame.onload = resolve)).then(() => {
        frame.contentWindow.importScripts = (...sources) =>
          sources.reduce((earlier, source) => earlier.then(() => load(source)), Promise.resolve());
        frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        return load(url);
      });
      this.postMessage = (data) =>
        loaded.then(() => frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
      document.body.append(frame);
    }
  };
}
