document.querySelectorAll("th").forEach((heading, place) => heading.addEventListener("click", () => {
  const body = heading.closest("table").tBodies[0], down = heading.dataset.down !== "yes";
  heading.dataset.down = down ? "yes" : "no";
  const key = row => row.cells[place].dataset.value;
  const order = (a, b) => {
    if (key(a) === "" || key(b) === "") return (key(a) === "") - (key(b) === "");
    const by = place ? key(a) - key(b) : key(a).localeCompare(key(b));
    return down === (place > 0) ? -by : by;
  };
  [...body.rows].sort(order).forEach(row => body.append(row));
}));
