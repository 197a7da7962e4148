// Figures enlarge: a click, a tap or Enter on an image opens it in a dialog; Escape or a click beside it closes it.
"use strict";
(() => {
  // An image that is a link leads somewhere already.
  const IMAGES = ".bd-article :is(figure, .cell_output) img"

  function dialogOf() {
    const dialog = document.createElement("dialog")
    dialog.className = "gradleak-lightbox"
    dialog.innerHTML = '<button type="button">Close</button><div tabindex="0"><img></div><p></p>'
    dialog.querySelector("button").addEventListener("click", () => dialog.close())
    dialog.addEventListener("click", event => { if (event.target === dialog) dialog.close() })
    document.body.append(dialog)
    return dialog
  }

  // As large as the window allows, at most twice and at least once its own size: on a phone a wide strip is scrolled.
  function widthOf(image) {
    const fitted = Math.min((innerWidth - 48) / image.naturalWidth, (innerHeight - 170) / image.naturalHeight)
    return Math.round(image.naturalWidth * Math.min(2, Math.max(1, fitted)))
  }

  function open(dialog, image) {
    const shown = dialog.querySelector("img")
    shown.src = image.currentSrc || image.src
    shown.alt = image.alt
    shown.style.width = `${widthOf(image)}px`
    const caption = image.closest("figure")?.querySelector("figcaption .caption-text")
    dialog.querySelector("p").replaceChildren(...caption ? [...caption.cloneNode(true).childNodes] : [])
    dialog.setAttribute("aria-label", image.alt || "Figure")
    dialog.addEventListener("close", () => image.focus({ preventScroll: true }), { once: true })
    dialog.showModal()
  }

  document.addEventListener("DOMContentLoaded", () => {
    let dialog = null
    for (const image of document.querySelectorAll(IMAGES)) {
      if (image.closest("a")) continue
      image.classList.add("gradleak-enlarges")
      Object.assign(image, { tabIndex: 0, role: "button", ariaHasPopup: "dialog", title: "Enlarge" })
      const enlarge = () => open(dialog ??= dialogOf(), image)
      image.addEventListener("click", enlarge)
      image.addEventListener("keydown", event => {
        if (event.key !== "Enter" && event.key !== " ") return
        event.preventDefault()
        enlarge()
      })
    }
  })
})()
