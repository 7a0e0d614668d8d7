// Browsers refuse workers to a page that was opened as a file. There, the worker of the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = (this.inside = frame.contentWindow);
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      // The worker awaits nothing of importScripts: what it names is loaded in order, before the next message.
      inside.importScripts = (...urls) =>
        urls.reduce((done, source) => done.then(() => this.load(source)), Promise.resolve());
      this.load(url).then(() => {
        this.ready = true;
        this.waiting.forEach((data) => this.postMessage(data));
      });
    }
    load(source) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script");
        script.src = source;
        script.onload = resolve;
        script.onerror = reject;
        this.inside.document.body.append(script);
      });
    }
    postMessage(data) {
      if (this.ready) this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
    terminate() {}
  };
}
