// Interactive figures. Python writes a container with a figure's data (gradleak/show/touch.py); this script draws the
// figure and its controls into it. Without this script the text in the container refers to the page's static figure.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg"

  // Elements -----------------------------------------------------------------------------------------------------

  function filled(made, attributes, children) {
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value)
    made.append(...children)
    return made
  }
  const element = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children)
  const drawn = (parent, name, attributes = {}, text = "") =>
    parent.appendChild(filled(document.createElementNS(SVG, name), attributes, [text]))

  // A linear scale from [low, high] to [start, end]
  const scale = (low, high, start, end) => value => start + (value - low) / (high - low) * (end - start)

  // A picture with horizontal lines at the ticks, each [height, text, class], and words below. It has no text of its
  // own: the sentence below the picture says what it shows.
  function plot(box, ticks, words, title = "") {
    const picture = drawn(document.createDocumentFragment(), "svg", { viewBox: `0 0 ${box.width} ${box.height}`, "aria-hidden": true })
    for (const [y, text, kind = "touch-grid"] of ticks) {
      drawn(picture, "line", { x1: box.left, x2: box.right, y1: y, y2: y, class: kind })
      drawn(picture, "text", { x: box.left - 6, y: y + 4, class: "touch-end" }, text)
    }
    drawn(picture, "text", { x: (box.left + box.right) / 2, y: box.bottom + 33, class: "touch-middle" }, words)
    drawn(picture, "text", { x: box.left, y: 14, class: "touch-title" }, title)
    return picture
  }

  // Numbers ------------------------------------------------------------------------------------------------------

  const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" }
  const minus = text => text.replace("-", "−")
  const power = exponent => exponent === 0 ? "1" : `10${[...String(exponent)].map(sign => SUPERSCRIPT[sign]).join("")}`

  // 0.0123 as "0.012" and 1.6e-7 as "1.6 × 10⁻⁷"
  function number(value) {
    if (value === 0) return "0"
    const size = Math.abs(value)
    if (size >= 0.001 && size < 1000) return minus(String(Number(value.toPrecision(2))))
    const [digits, exponent] = value.toExponential(1).split("e")
    return `${minus(digits)} × ${power(Number(exponent))}`
  }

  // The pseudo label (wang2024, Eqn. 4) and its variance loss (Eqn. 5) ----------------------------------------------

  function labelAt(path, scalar) {
    const scores = path.logits.map(logit => scalar * logit)
    const largest = Math.max(...scores)
    const weights = scores.map(score => Math.exp(score - largest))
    const sum = weights.reduce((total, weight) => total + weight, 0)
    return weights.map((weight, entry) => weight / sum - path.ratios[entry] / scalar)
  }

  function lossOf(path, label) {
    const rest = [...label].sort((one, other) => other - one).slice(path.free)
    const mean = rest.reduce((total, value) => total + value, 0) / rest.length
    return rest.reduce((total, value) => total + (value - mean) ** 2, 0) / rest.length
  }

  // A slider over λ ----------------------------------------------------------------------------------------------

  const POSITIONS = 400
  const ALL = Array.from({ length: POSITIONS + 1 }, (_, position) => position)
  // Below this loss, and nearer to the true scalar than this, rounding hides the difference.
  const LEAST_LOSS = 1e-9, SAME = 1e-5
  const ROUND = [1, 1.5, 2, 3, 4, 5, 7]
  const ascending = (one, other) => one - other

  function labelSlider(container, data) {
    // Positions are spaced evenly in log |λ|, and λ rises from left to right whatever its sign.
    const logs = [data.first, data.last].sort(ascending).map(end => Math.log(Math.abs(end)))
    const sign = Math.sign(data.truth)
    const plain = position => sign * Math.exp(logs[0] + position / POSITIONS * (logs[1] - logs[0]))
    const positionOf = scalar => (Math.log(Math.abs(scalar)) - logs[0]) / (logs[1] - logs[0]) * POSITIONS
    const home = Math.round(positionOf(data.truth))
    // The position nearest to the true scalar stands for the true scalar itself.
    const scalarAt = position => position === home ? data.truth : plain(position)
    const trueLabel = labelAt(data, data.truth)
    const labels = ALL.map(position => labelAt(data, scalarAt(position)))
    const losses = labels.map(label => lossOf(data, label))

    // The label as bars
    const box = { width: 400, height: 250, left: 46, right: 392, top: 26, bottom: 214 }
    const { left, right, top, bottom } = box
    const classes = data.logits.length
    const low = Math.min(-0.1, ...labels.flat()), high = Math.max(1, ...labels.flat())
    const up = scale(low, high, bottom, top)
    const slot = (right - left) / classes
    const values = [-0.5, 0, 0.5, 1].filter(value => value >= low && value <= high)
    const bars = plot(box, values.map(value => [up(value), minus(String(value)), value ? "touch-grid" : "touch-axis"]),
      "entry of the label", "pseudo label")
    const hatch = `hatch-${Math.random().toString(36).slice(2)}`
    const pattern = drawn(drawn(bars, "defs"), "pattern", {
      id: hatch, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
    })
    drawn(pattern, "rect", { width: 6, height: 6, class: "touch-wrong" })
    drawn(pattern, "line", { x1: 0, y1: 0, x2: 0, y2: 6, class: "touch-hatch" })
    const rectangles = data.logits.map((_, entry) =>
      drawn(bars, "rect", { x: left + (entry + 0.14) * slot, width: 0.72 * slot, "data-entry": entry + 1 }))
    trueLabel.forEach((value, entry) => drawn(bars, "line", {
      x1: left + (entry + 0.04) * slot, x2: left + (entry + 0.96) * slot, y1: up(value), y2: up(value), class: "touch-truth",
    }))
    for (let entry = 0; entry < classes; entry += Math.ceil(classes / 12))
      drawn(bars, "text", { x: left + (entry + 0.5) * slot, y: bottom + 16, class: "touch-middle" }, String(entry + 1))

    // The loss as a curve
    const others = losses.filter((_, position) => position !== home)
    const floor = Math.max(Math.log10(LEAST_LOSS), Math.floor(Math.log10(Math.min(...others))) - 1)
    const ceiling = Math.ceil(Math.log10(Math.max(...others)))
    const across = scale(0, POSITIONS, left, right)
    const rise = scale(floor, ceiling, bottom, top)
    const lossY = loss => rise(Math.max(floor, Math.log10(Math.max(loss, Number.MIN_VALUE))))
    const step = Math.ceil((ceiling - floor) / 5)
    const powers = ALL.map(number => ceiling - number * step).filter(exponent => exponent >= floor)
    const curve = plot(box, powers.map(exponent => [rise(exponent), power(exponent)]), "λ (logarithmic)", "variance loss")
    const inside = [data.low, data.high ?? data.last].map(end => across(positionOf(end))).sort(ascending)
    drawn(curve, "rect", { x: inside[0], width: inside[1] - inside[0], y: top, height: bottom - top, class: "touch-valid" })
    // The words stand on the side of the interval on which the true scalar leaves more room.
    const late = across(home) - inside[0] > inside[1] - across(home)
    drawn(curve, "text", { x: late ? inside[0] + 6 : inside[1] - 6, y: top + 14, class: late ? "" : "touch-end" }, "valid labels")
    const sizes = [-2, -1, 0, 1, 2, 3, 4].flatMap(exponent => ROUND.map(digit => digit * 10 ** exponent))
    let free = left
    for (const tick of sizes.map(size => sign * size).sort(ascending)) {
      const x = across(positionOf(tick))
      if (x < free || x > right) continue
      free = x + 34
      drawn(curve, "line", { x1: x, x2: x, y1: bottom, y2: bottom + 4, class: "touch-axis" })
      drawn(curve, "text", { x, y: bottom + 16, class: "touch-middle" }, minus(String(Number(tick.toPrecision(3)))))
    }
    drawn(curve, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "touch-axis" })
    drawn(curve, "line", { x1: across(home), x2: across(home), y1: top, y2: bottom, class: "touch-truth touch-dashed" })
    const line = losses.map((loss, position) => `${across(position).toFixed(1)},${lossY(loss).toFixed(1)}`)
    drawn(curve, "polyline", { points: line.join(" "), class: "touch-line" })
    const point = drawn(curve, "circle", { r: 7 })

    const range = element("input", { type: "range", min: 0, max: POSITIONS, step: 1, "aria-label": "scalar λ" })
    const search = element("button", { type: "button" }, "Find the smallest loss")
    const said = element("p", { class: "gradleak-touch-now", role: "status", "aria-live": "polite" })

    function show(scalar) {
      const label = labelAt(data, scalar), loss = lossOf(data, label)
      // As Python's figure does, count an entry as negative only where it is so by more than rounding.
      const negative = label.flatMap((value, entry) => value < -1e-9 ? [entry + 1] : [])
      const kind = negative.length ? "touch-wrong" : "touch-bar"
      label.forEach((value, entry) => {
        const bar = rectangles[entry]
        bar.setAttribute("y", Math.min(up(value), up(0)))
        bar.setAttribute("height", Math.abs(up(value) - up(0)))
        bar.setAttribute("class", kind)
        bar.setAttribute("style", value < -1e-9 ? `fill: url(#${hatch})` : "")
        bar.dataset.value = value
      })
      point.setAttribute("cx", across(positionOf(scalar)))
      point.setAttribute("cy", lossY(loss))
      point.setAttribute("class", `touch-point ${kind}`)
      const at = minus(scalar.toFixed(Math.abs(scalar) < 10 ? 3 : 2))
      const entries = new Intl.ListFormat("en-GB").format(negative.map(String))
      const verdict = !negative.length ? "The label is valid"
        : negative.length === 1 ? `Not a label: entry ${entries} is negative` : `Not a label: entries ${entries} are negative`
      const found = Math.abs(scalar / data.truth - 1) < SAME
      const shown = loss < LEAST_LOSS ? `below ${power(Math.log10(LEAST_LOSS))}` : number(loss)
      said.textContent = `λ = ${at}. ${verdict}. Loss: ${shown}.`
        + (found ? " This is the true scalar: the pseudo label is the client's label." : "")
      Object.assign(container.dataset, { scalar, loss, valid: !negative.length, found })
      range.setAttribute("aria-valuetext", at)
    }
    range.addEventListener("input", () => show(scalarAt(Number(range.value))))
    search.addEventListener("click", () => {
      // The server's search: the best valid position, then positions ever closer around it. It uses the gradient alone.
      let start = 0, width = POSITIONS, best = 0
      for (let round = 0; round < 6; round += 1) {
        const places = ALL.map(position => start + width * position / POSITIONS)
        const tried = places.map(place => {
          const label = labelAt(data, plain(place))
          return round === 0 && Math.min(...label) < 0 ? Infinity : lossOf(data, label)
        })
        best = places[tried.indexOf(Math.min(...tried))]
        width /= POSITIONS / 4
        start = best - width / 2
      }
      range.value = Math.round(best)
      show(plain(best))
    })
    container.append(
      element("div", { class: "gradleak-touch-pair" }, bars, curve),
      element("div", { class: "gradleak-touch-controls" }, element("span", { "aria-hidden": "true" }, "λ"), range, search),
      said, element("p", { class: "gradleak-touch-key" }, element("span", { class: "touch-key-truth" }),
        " true label and true scalar λ*, which the server does not know"))
    // It begins in the middle of the interval, with a label that is valid and wrong.
    range.value = Math.round((positionOf(data.low) + positionOf(data.high ?? data.last)) / 2)
    show(scalarAt(Number(range.value)))
  }

  // The replay of a reading -----------------------------------------------------------------------------------------

  const PAUSE = 1400 // milliseconds between two steps
  // "▁how" begins a word and "ed" goes on with one.
  const joined = pieces => pieces.join("").replaceAll("▁", " ").trim()
  const MARKS = { "<s>": "(start mark)", "</s>": "(end mark)", "<unk>": "(unknown)" }
  const shownPiece = piece => MARKS[piece] ?? (piece.startsWith("▁") ? piece.slice(1) : `-${piece}`)

  function readingReplay(container, data) {
    const steps = data.steps, last = steps.length
    const smallest = Math.min(...steps.flatMap(step => [...step.others, ...step.miss === null ? [] : [step.miss]]))
    const floor = Math.floor(Math.log10(smallest)), high = Math.log10(2)

    // A picture of this width, and a function that shows the steps up to one of them
    function replay(width) {
      const box = { width, height: 290, left: 44, right: width - 8, top: 12, bottom: 250 }
      const { left, right, top, bottom } = box
      const up = scale(floor, high, bottom, top)
      const y = distance => up(Math.log10(distance))
      const slot = (right - left) / last
      const middle = index => left + (index + 0.5) * slot
      const ticks = []
      for (let exponent = Math.floor(high); exponent >= floor; exponent -= 2) ticks.push([up(exponent), power(exponent)])
      const picture = plot(box, [...ticks, [y(data.fits), "", "touch-axis touch-dashed"]], "step")
      drawn(picture, "text", { x: right, y: y(data.fits) + 15, class: "touch-end" }, "below this line: in the span")
      const band = drawn(picture, "rect", { y: top, width: slot, height: bottom - top, class: "touch-band" })
      picture.prepend(band)
      const columns = steps.map((step, index) => {
        const column = drawn(picture, "g")
        step.others.forEach((distance, rank) => drawn(column, "circle", {
          // Side by side, so that words at the same distance are all seen.
          cx: middle(index) + (rank % 7 - 3) * slot * 0.11, cy: y(distance), r: 2.6,
          class: distance < data.fits ? "touch-fits" : "touch-other",
        }))
        if (step.miss !== null) drawn(column, "circle", { cx: middle(index), cy: y(step.miss), r: 7, class: "touch-chosen" })
        drawn(picture, "text", { x: middle(index), y: bottom + 16, class: "touch-middle" }, String(index + 1))
        return column
      })
      const upTo = step => {
        band.setAttribute("x", left + (step - 1) * slot)
        columns.forEach((column, index) => column.setAttribute("class", index < step ? "" : "touch-hidden"))
      }
      return { picture, upTo }
    }

    const [play, back, forward] = ["Play", "Back", "Forward"].map(text => element("button", { type: "button" }, text))
    const range = element("input", { type: "range", min: 1, max: last, step: 1, "aria-label": "step of the reading" })
    const sentence = element("p", { class: "gradleak-touch-sentence", lang: "en" })
    const said = element("p", { class: "gradleak-touch-now", role: "status", "aria-live": "polite" })
    const nearest = element("tbody")
    const table = element("table", { class: "gradleak-touch-nearest" },
      element("caption", {}, "The nearest words at this step"),
      element("thead", {}, element("tr", {}, element("th", {}, "word"), element("th", {}, "relative distance"))), nearest)

    let now = 1, timer = null, drawing = replay(720)
    function show(step) {
      now = Math.min(last, Math.max(1, step))
      const { piece, miss, others, names } = steps[now - 1]
      range.value = now
      drawing.upTo(now)
      const read = steps.slice(0, now).map(one => one.piece).filter(Boolean)
      const before = read.slice(0, piece ? -1 : read.length)
      const text = joined(read), prefix = joined(before)
      sentence.replaceChildren(prefix, piece.startsWith("▁") && prefix ? " " : "",
        ...piece ? [element("mark", {}, piece.replaceAll("▁", ""))] : [], now < last ? " …" : ".")
      // The word that is read stands first, even where several words lie in the span.
      const rows = piece ? [[piece, miss], ...names.filter(([name]) => name !== piece)].slice(0, 4) : names
      nearest.replaceChildren(...rows.map(([name, distance]) => element("tr", name === piece ? { class: "touch-read" } : {},
        element("td", {}, shownPiece(name)), element("td", {}, number(distance)))))
      const fitting = others.filter(distance => distance < data.fits).length
      const outside = others.find(distance => distance >= data.fits)
      const word = shownPiece(piece)
      said.textContent = `Step ${now} of ${last}: ` + (!piece
        ? `no word lies in the span; the nearest one has the relative distance ${number(others[0])}. The sentence is over.`
        : fitting
          ? `${fitting + 1} words lie in the span, because several sentences can go on here. This replay follows “${word}”.`
          : `“${word}” lies in the span (relative distance ${number(miss)}); the nearest other word is at ${number(outside)}.`)
      range.setAttribute("aria-valuetext", `step ${now} of ${last}: ${text}`)
      Object.assign(container.dataset, { step: now, text })
      back.disabled = now === 1
      forward.disabled = now === last
    }
    function pause() {
      clearInterval(timer)
      timer = null
      play.textContent = "Play"
    }
    function start() {
      if (now === last) show(1)
      play.textContent = "Pause"
      timer = setInterval(() => {
        show(now + 1)
        if (now === last) pause()
      }, PAUSE)
    }
    // A disabled button loses the focus of the keyboard, so it goes to its neighbour.
    function go(step, button, other) {
      pause()
      const focused = document.activeElement === button
      show(step)
      if (focused && button.disabled) other.focus()
    }
    play.addEventListener("click", () => timer === null ? start() : pause())
    back.addEventListener("click", () => go(now - 1, back, forward))
    forward.addEventListener("click", () => go(now + 1, forward, back))
    range.addEventListener("input", () => go(Number(range.value), range, range))
    container.append(
      sentence, drawing.picture,
      element("div", { class: "gradleak-touch-controls" }, play, back, forward, range), said, table)
    show(1)
    // On a phone the picture is drawn narrower, so that its words keep their size.
    let narrow = false
    new ResizeObserver(() => {
      if (narrow === container.clientWidth < 520) return
      narrow = !narrow
      const next = replay(narrow ? 340 : 720)
      drawing.picture.replaceWith(next.picture)
      drawing = next
      drawing.upTo(now)
    }).observe(container)
  }

  const KINDS = { "label-slider": labelSlider, "reading-replay": readingReplay }

  document.addEventListener("DOMContentLoaded", () => {
    for (const container of document.querySelectorAll(".gradleak-touch[data-kind]")) {
      KINDS[container.dataset.kind](container, JSON.parse(container.querySelector("script").textContent))
      container.querySelector(".gradleak-touch-instead").remove()
      container.querySelector(".gradleak-touch-says").hidden = false
    }
  })
})()
