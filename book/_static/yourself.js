// "Run this page yourself": writes the command for the values in the form, with the time that they are likely to take.
document.addEventListener("DOMContentLoaded", () => {
  for (const form of document.querySelectorAll("div.gradleak-yourself")) {
    const facts = JSON.parse(form.dataset.facts)
    const [command, estimate, button] = ["pre code", ".gradleak-estimate", "button"].map(name => form.querySelector(name))
    const inputs = [...form.querySelectorAll("input")]
    const quoted = text => /^[\w.,:/=+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`
    const inWords = seconds => seconds < 1 ? "less than a second" : seconds < 100 ? `about ${Math.round(seconds)} s`
      : seconds < 5400 ? `about ${Math.round(seconds / 60)} min` : `about ${(seconds / 3600).toFixed(1)} h`
    // What a value contributes to the time: a count, or the length of a list.
    const size = (name, text) => {
      const quick = facts.sizes[name]
      const parts = text.match(/\{/g) ?? text.split(",").filter(part => part.trim())
      return inputs.find(input => input.name === name).defaultValue.includes(",") || parts.length > 1 || !Number(text) && parts.length
        ? parts.length : Number(text) || quick
    }
    const write = () => {
      const changed = inputs.filter(input => input.value.trim() !== input.defaultValue)
      command.textContent = ["gradleak run", facts.study,
        ...changed.map(input => `-p ${quoted(`${input.name}=${input.value.trim()}`)}`), "--open"].join(" ")
      if (facts.seconds === null) return
      const ratio = Object.entries(facts.sizes).reduce((product, [name, quick]) =>
        product * size(name, inputs.find(input => input.name === name).value) / quick, 1)
      const seconds = Math.max(facts.seconds, 0.05) * ratio
      estimate.textContent = `With the values above: ${inWords(seconds)} of computing time, by a rough estimate from this run.`
    }
    form.addEventListener("input", write)
    button.hidden = false
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(command.textContent); button.textContent = "Copied" }
      catch { getSelection().selectAllChildren(command); button.textContent = "Selected: press Ctrl+C" }
      setTimeout(() => { button.textContent = "Copy the command" }, 2000)
    })
    write()
  }
})
