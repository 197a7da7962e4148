// The theme's script listens to the first button of each kind, which lies in the upper bar that this book hides; the
// others lead there.
document.addEventListener("DOMContentLoaded", () => {
  for (const kind of ["primary-toggle", "secondary-toggle"]) {
    const [first, ...others] = document.querySelectorAll(`.${kind}`)
    for (const button of others) button.addEventListener("click", () => first.click())
  }
})
