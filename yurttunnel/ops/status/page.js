// Fetches the page again and again, and replaces what changed; sorts tables, and tells of bars of
// charts. ECMAScript 2015 and the DOM, nothing else; it stands in the page, allowed by its hash.
(function () {
  "use strict";
  var PERIOD = 2000, LONGEST = 10000, DEADLINE = 10000, SHARE = 10, INTERVAL = 5;
  var live = document.getElementById("live"), pause = document.getElementById("pause");
  var paused = false, timer = null, answered = new Date(), took = 0, orders = {};

  function say(kind, text) {
    if (live.textContent !== text) {
      live.className = "mark " + kind;
      live.textContent = text;
    }
  }

  // What somebody reads with the mouse or the keyboard stays as it is.
  function inUse(section) {
    var selection = document.getSelection(), active = document.activeElement;
    return (section.contains(active) && !active.matches(".sort")) ||
      (selection && !selection.isCollapsed && selection.containsNode(section, true));
  }

  // Before the first of those behind it that is there.
  function insert(section) {
    var next = section.nextElementSibling;
    while (next && !(next.id && document.getElementById(next.id))) {
      next = next.nextElementSibling;
    }
    document.querySelector("main").insertBefore(
      section, next && document.getElementById(next.id));
  }

  function show(text) {
    var fresh = new DOMParser().parseFromString(text, "text/html");
    document.title = fresh.title;
    document.querySelectorAll("[data-live]").forEach(function (section) {
      if (!fresh.getElementById(section.id)) { section.remove(); }
    });
    fresh.querySelectorAll("[data-live]").forEach(function (section) {
      var shown = document.getElementById(section.id);
      if (shown && inUse(shown)) { return; }
      prepare(section);
      if (!shown) { return insert(section); }
      if (shown.innerHTML === section.innerHTML) { return; }
      var focused = shown.contains(document.activeElement) ? document.activeElement.id : "";
      shown.replaceChildren.apply(shown, Array.from(section.childNodes));
      if (focused && document.getElementById(focused)) {
        document.getElementById(focused).focus();
      }
    });
  }

  // -- sorting: the heads of columns become buttons -------------------------------------------

  function value(row, column) {
    var cell = row.cells[column], order = cell.getAttribute("data-order");
    return order === null ? cell.textContent : Number(order);
  }

  function compare(one, other) {
    return typeof one === "number" && typeof other === "number" ? one - other
      : String(one).localeCompare(String(other), undefined, { numeric: true });
  }

  function sort(table, column, descending) {
    Array.from(table.tBodies[0].rows).sort(function (one, other) {
      return compare(value(one, column), value(other, column)) * (descending ? -1 : 1);
    }).forEach(function (row) { table.tBodies[0].appendChild(row); });
    Array.from(table.tHead.rows[0].cells).forEach(function (cell, place) {
      if (place === column) {
        cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
      } else {
        cell.removeAttribute("aria-sort");
      }
    });
  }

  function prepare(section) {
    section.querySelectorAll("table").forEach(function (table, number) {
      if (!table.tHead || table.tBodies[0].rows.length < 2) { return; }
      var key = section.id + "-" + number;
      Array.from(table.tHead.rows[0].cells).forEach(function (cell, column) {
        var button = document.createElement("button");
        button.type = "button";
        button.className = "sort";
        button.id = key + "-" + column;
        button.textContent = cell.textContent;
        cell.replaceChildren(button);
      });
      if (orders[key]) { sort(table, orders[key].column, orders[key].descending); }
    });
  }

  document.addEventListener("click", function (event) {
    var button = event.target.closest(".sort");
    if (!button) { return; }
    var cell = button.parentElement, table = button.closest("table"), column = cell.cellIndex;
    var first = table.tBodies[0].rows[0].cells[column].hasAttribute("data-order");
    var before = cell.getAttribute("aria-sort");
    var descending = before ? before === "ascending" : first;
    orders[button.id.slice(0, button.id.lastIndexOf("-"))] =
      { column: column, descending: descending };
    sort(table, column, descending);
  });

  // -- charts: which bar is under the pointer --------------------------------------------------

  // toPrecision() alone writes 150 with two digits as 1.5e+2.
  function rounded(number) {
    return Number(number.toPrecision(number < 100 ? 2 : 3));
  }

  function written(number, unit) {
    var sizes = ["B", "KiB", "MiB", "GiB", "TiB"], place = 0;
    if (unit === "s") {
      return number >= 1 ? number.toFixed(1) + " s" : rounded(number * 1000) + " ms";
    }
    if (unit === "/s") { return (number < 10 ? rounded(number) : number.toFixed(0)) + "/s"; }
    while (number >= 1000 && place < sizes.length - 1) { number /= 1024; place += 1; }
    return rounded(number) + " " + sizes[place] + "/s";
  }

  function barAt(chart, place) {
    var path = chart.querySelector("path"), x = 0, found = 0;
    var moves = /m(-?[\d.]+) (-?[\d.]+)v-([\d.]+)/g, move;
    while (path && (move = moves.exec(path.getAttribute("d")))) {
      x += Number(move[1]);
      if (Math.floor(x) === place) { found = Number(move[3]); }
    }
    return found;
  }

  var hint = document.createElement("div");
  hint.id = "hint";
  hint.hidden = true;
  hint.setAttribute("aria-hidden", "true");
  document.body.appendChild(hint);

  document.addEventListener("pointermove", function (event) {
    var chart = event.target.closest(".spark");
    hint.hidden = !chart;
    if (!chart) { return; }
    var box = chart.getBoundingClientRect(), size = chart.viewBox.baseVal;
    var place = Math.min(size.width - 1,
      Math.floor((event.clientX - box.left) / box.width * size.width));
    var number = barAt(chart, place) / size.height * Number(chart.getAttribute("data-most"));
    hint.textContent = "about " + written(number, chart.getAttribute("data-unit")) + ", " +
      (size.width - place) * INTERVAL + " s ago";
    hint.style.left = Math.min(event.clientX + 12,
      document.documentElement.clientWidth - hint.offsetWidth - 4) + "px";
    hint.style.top = event.clientY + 16 + "px";
  });

  // -- the page as it is now -------------------------------------------------------------------

  // A process that needs long for the page is not asked as often as others.
  function next() {
    clearTimeout(timer);
    timer = paused || document.hidden ? null
      : setTimeout(refresh, Math.min(LONGEST, Math.max(PERIOD, SHARE * took)));
  }

  function refresh() {
    var began = Date.now(), abort = new AbortController();
    var late = setTimeout(function () { abort.abort(); }, DEADLINE);
    fetch(location.href, { cache: "no-store", signal: abort.signal }).then(function (answer) {
      if (!answer.ok) { throw new Error(answer.status); }
      return answer.text();
    }).then(function (text) {
      if (!paused) {
        show(text);
        answered = new Date();
        say("ok", "Live");
      }
    }).catch(function () {
      say("bad", "No answer since " + answered.toLocaleTimeString());
    }).then(function () {
      clearTimeout(late);
      took = Date.now() - began;
      next();
    });
  }

  pause.addEventListener("click", function () {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    say(paused ? "warn" : "ok", paused ? "Paused" : "Live");
    next();
  });
  document.addEventListener("visibilitychange", next);
  document.querySelectorAll("[data-live]").forEach(prepare);
  pause.hidden = false;
  say("ok", "Live");
  next();
})();
