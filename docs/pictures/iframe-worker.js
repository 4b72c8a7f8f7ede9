/* The search of a site that is read from a folder. Browsers start no worker from a file, so an iframe
   runs its script, with the part of the worker's interface that the search uses. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html>";
      this.frame.onload = () => this.start(url);
      document.documentElement.appendChild(this.frame);
    }

    start(url) {
      const inside = this.frame.contentWindow;
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = url;
      script.onload = () => {
        this.deliver = data => inside.dispatchEvent(new MessageEvent("message", { data }));
        this.waiting.forEach(this.deliver);
      };
      inside.document.body.appendChild(script);
    }

    postMessage(data) {
      this.deliver ? this.deliver(data) : this.waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
