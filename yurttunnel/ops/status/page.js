// Fetches the page again and again, and replaces what changed. ECMAScript 2015 and the DOM,
// nothing else; it stands in the page, allowed by its hash.
(function () {
  "use strict";
  var PERIOD = 2000, LONGEST = 10000, DEADLINE = 10000, SHARE = 10;
  var live = document.getElementById("live"), pause = document.getElementById("pause");
  var paused = false, timer = null, answered = new Date(), took = 0;

  function say(kind, text) {
    if (live.textContent !== text) {
      live.className = "mark " + kind;
      live.textContent = text;
    }
  }

  // What somebody reads with the mouse or the keyboard stays as it is.
  function inUse(section) {
    var selection = document.getSelection();
    return section.contains(document.activeElement) ||
      (selection && !selection.isCollapsed && selection.containsNode(section, true));
  }

  function show(text) {
    var fresh = new DOMParser().parseFromString(text, "text/html");
    document.title = fresh.title;
    fresh.querySelectorAll("[data-live]").forEach(function (section) {
      var shown = document.getElementById(section.id);
      if (shown && shown.innerHTML !== section.innerHTML && !inUse(shown)) {
        shown.replaceChildren.apply(shown, Array.from(section.childNodes));
      }
    });
  }

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
  pause.hidden = false;
  say("ok", "Live");
  next();
})();
