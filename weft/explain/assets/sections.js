// The steps of each model, under its explanation.

JSON.parse(find("data").textContent).forEach((data, number) => {
  const view = new InsideView(data);
  document.querySelectorAll(".steps-of-model")[number].append(element("h3", {}, "Inside"), view.box);
  view.show();
});
