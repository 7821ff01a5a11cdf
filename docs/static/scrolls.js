// Code and tables wider than the page scroll by keyboard as well: they can be reached with Tab, and only those.
"use strict";
const mark = () => {
  for (const each of document.querySelectorAll("pre, .table-wrapper")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0; else each.removeAttribute("tabindex");
  }
};
addEventListener("load", mark);
addEventListener("resize", mark);
