// A page that was opened as a file may start no worker, and the search of the site is one. This stands in for it: the
// script runs in a hidden frame, and messages go to and fro as events. Pages that a server sends keep real workers.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.onmessage = null
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentDocument
      inside.open()
      inside.write("<!doctype html><body></body>")
      inside.close()
      this.scope = frame.contentWindow
      this.scope.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      this.scope.importScripts = async (...urls) => {
        for (const each of urls) await this.run(each)
      }
      this.ready = this.run(url)
    }

    run(url) {
      return new Promise((resolve, reject) => {
        const script = this.scope.document.createElement("script")
        script.src = new URL(url, location.href)
        script.onload = resolve
        script.onerror = () => reject(new Error(`${url} cannot be loaded`))
        this.scope.document.body.append(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data })))
    }

    terminate() {
      this.scope.frameElement.remove()
    }
  }
}
