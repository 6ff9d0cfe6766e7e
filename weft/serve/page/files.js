"use strict";
// Translates a file: it is sent, and the translated file is offered for download.

const fileField = find("file");

async function translateFile() {
  const [file] = fileField.files;
  const link = find("translated-file");
  link.hidden = true;
  if (!file) return;
  const form = new FormData();
  const fields = { file, source: fromChoice.value, target: toChoice.value, api_key: keyField.value };
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  fileField.disabled = true;
  showFileStatus(`Translating ${file.name} …`);
  try {
    const { translatedFileUrl } = await ask("translate_file", { method: "POST", body: form });
    // The server may have another name behind a proxy, so only the last part of its address counts.
    link.href = `download_file/${translatedFileUrl.split("/").pop()}`;
    link.download = file.name.replace(/(\.[^.]*)?$/, (suffix) => `.${toChoice.value}${suffix}`);
    link.textContent = `Download ${link.download}`;
    link.hidden = false;
    showFileStatus("");
  } catch (error) {
    showFileStatus(sentence(error.message), true);
  } finally {
    fileField.disabled = false;
  }
}

function showFileStatus(text, wrong = false) {
  find("file-status").textContent = text;
  find("file-status").classList.toggle("problem", wrong);
}

/** Names the formats and the size that the server takes. */
function offerFiles({ supportedFilesFormat, limits }) {
  fileField.accept = supportedFilesFormat.join(",");
  const size = `${Math.floor(limits.bytes / 1024).toLocaleString("en")} KiB`;
  find("file-hint").textContent = `${supportedFilesFormat.join(", ")}, up to ${size}. Only the text changes. The server deletes translated files after half an hour.`;
}

fileField.addEventListener("change", translateFile);
