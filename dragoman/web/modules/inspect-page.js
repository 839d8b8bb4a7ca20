// The script of a page in one file: draw the data that the page holds.

import { readData } from "./core.js";
import { showInspection } from "./inspect.js";

showInspection(readData(), document.body.appendChild(document.createElement("div")));
