document.addEventListener("DOMContentLoaded", () => {
  // The theme's script listens to the first button of each kind, which lies in the upper bar that this book hides; the
  // others lead there.
  for (const kind of ["primary-toggle", "secondary-toggle"]) {
    const [first, ...others] = document.querySelectorAll(`.${kind}`)
    for (const button of others) button.addEventListener("click", () => first.click())
  }

  // Each table with a caption can be saved as a CSV file.
  const quoted = text => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
  const shown = cell => cell.textContent.replace(/\s+/g, " ").trim()
  for (const table of document.querySelectorAll(".bd-article table:has(caption)")) {
    const link = Object.assign(document.createElement("a"), { className: "csv", textContent: "CSV", href: "#" })
    link.title = "Save this table as CSV"
    link.download = `${table.id || "table"}.csv`
    link.addEventListener("click", () => {
      const lines = [...table.rows].map(row => [...row.cells].map(cell => quoted(shown(cell))).join(","))
      link.href = URL.createObjectURL(new Blob([`\ufeff${lines.join("\r\n")}\r\n`], { type: "text/csv" }))
    })
    table.caption.append(" ", link)
  }

  // A click on a figure opens its image alone, which a browser enlarges.
  for (const image of document.querySelectorAll(".bd-article :is(figure, .cell_output) img")) {
    if (image.closest("a") || image.src.startsWith("data:")) continue
    const link = Object.assign(document.createElement("a"), { href: image.src, title: "Enlarge" })
    const figure = image.closest("picture") ?? image
    figure.replaceWith(link)
    link.append(figure)
  }
})
