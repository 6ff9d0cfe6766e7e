// Browsers do not let a page that is opened from disk fetch others, so there the results of a search have no excerpts.
DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = location.protocol !== "file:";

// A transcript is copied without its prompts and outputs, any other block as it is.
function copied(block) {
  const lines = block.innerText.replace(/\n+$/, "").split("\n");
  const commands = lines.filter((line) => line.startsWith("$ ")).map((line) => line.slice(2));
  return (commands.length ? commands : lines).join("\n");
}

for (const block of document.querySelectorAll("div.highlight")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(copied(block.querySelector("pre")));
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  block.append(button);
}
