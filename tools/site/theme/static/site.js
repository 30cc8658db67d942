"use strict";
// The list of pages is open where there is room beside the text, and shows the current page.
document.addEventListener("DOMContentLoaded", () => {
  const pages = document.getElementById("pages");
  const wide = window.matchMedia("(min-width: 60rem)");
  const follow = () => { pages.open = wide.matches; };
  wide.addEventListener("change", follow);
  follow();
  const current = pages.querySelector("a.current");
  if (current && wide.matches) pages.scrollTop = Math.max(current.offsetTop - 200, 0);
  const asked = new URLSearchParams(location.search).get("q");
  if (asked) document.querySelector("form.find input").value = asked;
});
