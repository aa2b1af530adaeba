// The page reads without this: it sorts tables, copies commands, shows where one is, and opens what
// is folded before it is printed. The documentation site sorts its tables by this file, too.
(() => {
  "use strict";
  const each = (query, act, root = document) => root.querySelectorAll(query).forEach(act);

  // A number at the beginning of a cell counts as one; a minus may be a true one.
  const value = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const number = parseFloat(text.replace(/\u2212/g, "-").replace(/[\u202f,](?=\d{3})/g, ""));
    return Number.isNaN(number) ? text : number;
  };
  const before = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b
      : typeof a === "number" ? -1
        : typeof b === "number" ? 1
          : a.localeCompare(b);
  const isEmpty = (value) => value === "" || value === "–"; // last in both directions
  each("table[data-sort], [data-sort] table", (table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows];
        const values = new Map(rows.map((row) => [row, value(row, column)]));
        rows.sort((one, other) => {
          const [a, b] = [values.get(one), values.get(other)];
          return isEmpty(a) - isEmpty(b) || before(a, b) * (down ? -1 : 1);
        });
        table.tBodies[0].append(...rows);
      });
    });
  });

  if (navigator.clipboard) {
    each(".command", (command) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(command.querySelector("code").textContent);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
      command.append(button);
    });
  }

  const links = new Map();
  each("nav a", (link) => links.set(link.hash.slice(1), link));
  if ("IntersectionObserver" in window) {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        links.forEach((link) => link.removeAttribute("aria-current"));
        links.get(entry.target.id)?.setAttribute("aria-current", "true");
      }
    }, { rootMargin: "-20% 0px -75%" });
    each("main > section", (section) => seen.observe(section));
  }

  const closed = [];
  addEventListener("beforeprint", () => each("details:not([open])", (one) => {
    closed.push(one);
    one.open = true;
  }));
  addEventListener("afterprint", () => closed.splice(0).forEach((one) => { one.open = false; }));
  // An address leads into what is folded.
  const unfold = () => document.getElementById(location.hash.slice(1))?.closest("details")?.setAttribute("open", "");
  addEventListener("hashchange", unfold);
  if (location.hash) unfold();
})();
