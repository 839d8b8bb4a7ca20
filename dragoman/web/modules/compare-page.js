// The script of a comparison in one file.

import { showComparison } from "./compare.js";
import { readData } from "./core.js";

showComparison(readData(), document.body.appendChild(document.createElement("div")));
