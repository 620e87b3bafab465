// Checks that run inside of a page (looking.py calls them): each returns a list of sentences.
(() => {
  const named = element => {
    const text = (element.textContent || '').trim().replace(/\s+/g, ' ').slice(0, 40);
    const classes = element.getAttribute('class');
    return '<' + element.tagName.toLowerCase() + (element.id ? ' #' + element.id : '')
      + (classes ? ' .' + classes.trim().split(/\s+/).join('.') : '') + '> "' + text + '"';
  };
  const visible = element => element.checkVisibility({opacityProperty: true, visibilityProperty: true});

  const overflow = () => {
    const root = document.scrollingElement, width = root.clientWidth, found = [];
    if (root.scrollWidth > width) found.push(`the page is ${root.scrollWidth} px wide in a window of ${width} px`);
    const contained = element => {
      for (let at = element.parentElement; at && at !== document.body && at !== root; at = at.parentElement) {
        const box = at.getBoundingClientRect();
        if (getComputedStyle(at).overflowX !== 'visible' && box.left >= -1 && box.right <= width + 1) return true;
      }
      return false;
    };
    const outside = element => {
      const box = element.getBoundingClientRect();
      if (box.width < 2 || box.height < 2 || box.right <= 0) return false;  // nothing to see, or hidden left of the page
      if (box.left >= width && getComputedStyle(element).position === 'fixed') return false;  // a drawer that is closed
      return (box.right > width + 1 || box.left < -1) && !contained(element);
    };
    const reported = new Set();
    for (const element of document.body.querySelectorAll('*')) {
      if (element.ownerSVGElement) {
        const drawing = element.ownerSVGElement.getBoundingClientRect();
        if (element.tagName !== 'text' || !visible(element) || !drawing.width) continue;
        const box = element.getBoundingClientRect();
        const cut = box.left < drawing.left - 1 || box.right > drawing.right + 1
          || box.top < drawing.top - 1 || box.bottom > drawing.bottom + 1;
        if (cut) found.push(`${named(element)} is cut at the edge of its drawing`);
        continue;
      }
      if (reported.has(element.parentElement)) { reported.add(element); continue; }
      if (visible(element) && outside(element)) {
        reported.add(element);
        const box = element.getBoundingClientRect();
        const edges = `${Math.round(box.left)} to ${Math.round(box.right)}`;
        found.push(`${named(element)} goes from ${edges} px in a window of ${width} px`);
      }
    }
    return found;
  };

  const lowContrast = () => {
    const pen = Object.assign(document.createElement('canvas'), {width: 1, height: 1})
      .getContext('2d', {willReadFrequently: true});
    const known = new Map();
    // [red, green, blue, alpha], each from 0 to 1
    const parsed = text => {
      if (known.has(text)) return known.get(text);
      const numbers = (text.match(/-?[\d.]+(e-?\d+)?/g) || []).map(Number);
      let colour;
      if (/^rgba?\(/.test(text)) colour = [...numbers.slice(0, 3).map(each => each / 255), numbers[3] ?? 1];
      else if (/^color\(srgb /.test(text)) colour = [...numbers.slice(0, 3), numbers[3] ?? 1];
      else {
        pen.clearRect(0, 0, 1, 1);
        pen.fillStyle = text;
        pen.fillRect(0, 0, 1, 1);
        colour = [...pen.getImageData(0, 0, 1, 1).data].map(each => each / 255);
      }
      known.set(text, colour);
      return colour;
    };
    const over = (top, below) => {
      const alpha = top[3] + below[3] * (1 - top[3]);
      const mixed = [0, 1, 2].map(at => (top[at] * top[3] + below[at] * below[3] * (1 - top[3])) / (alpha || 1));
      return [...mixed, alpha];
    };
    const luminance = colour => {
      const [red, green, blue] = colour.slice(0, 3)
        .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const probe = document.body.appendChild(document.createElement('div'));
    probe.style.cssText = 'background: Canvas !important; width: 0; height: 0';
    probe.style.colorScheme = getComputedStyle(document.documentElement).colorScheme;
    const canvas = parsed(getComputedStyle(probe).backgroundColor);
    probe.remove();
    // what the element's text and what its background come to on the screen; null behind a picture
    const painted = (element, colour) => {
      let text = colour, ground = [0, 0, 0, 0];
      for (let at = element; at; at = at.parentElement) {
        const style = getComputedStyle(at), own = parsed(style.backgroundColor), seen = ground[3] < 1;
        if (seen && style.backgroundImage !== 'none' && !at.ownerSVGElement) return null;
        if (!at.ownerSVGElement) { text = over(text, own); ground = over(ground, own); }
        const opacity = Number(style.opacity);
        text = [...text.slice(0, 3), text[3] * opacity];
        ground = [...ground.slice(0, 3), ground[3] * opacity];
      }
      return [over(text, canvas), over(ground, canvas)];
    };
    const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
    const seen = new Set();
    const unread = 'script, style, noscript, template, title, desc, option, :disabled';
    const hex = colour => '#'
      + colour.slice(0, 3).map(part => Math.round(255 * part).toString(16).padStart(2, '0')).join('');
    while (walker.nextNode()) {
      const node = walker.currentNode, element = node.parentElement;
      if (!node.data.trim() || seen.has(element) || element.closest(unread)) continue;
      range.selectNodeContents(node);
      const box = range.getBoundingClientRect(), own = element.getBoundingClientRect();
      // a box of one pixel holds words for screen readers alone
      if (!visible(element) || box.width < 2 || box.height < 2 || own.width < 2 || own.height < 2) continue;
      seen.add(element);
      const style = getComputedStyle(element);
      const drawn = Boolean(element.ownerSVGElement);
      let colour = parsed(drawn ? style.fill : style.color);
      if (drawn) colour = [...colour.slice(0, 3), colour[3] * Number(style.fillOpacity)];
      const pair = painted(element, colour);
      if (!pair) continue;
      const [light, dark] = pair.map(luminance).sort((a, b) => b - a);
      const ratio = (light + 0.05) / (dark + 0.05), size = parseFloat(style.fontSize);
      const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      if (ratio < (large ? 3 : 4.5) - 0.005) {
        const colours = `${hex(pair[0])} on ${hex(pair[1])}`;
        found.push(`${named(element)}: contrast ${ratio.toFixed(2)}, ${colours}, expected ${large ? 3 : 4.5}`);
      }
    }
    return found;
  };

  return {overflow, lowContrast};
})()
