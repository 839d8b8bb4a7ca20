// The script of the page of toys.

import { readData } from "./core.js";
import { showToys } from "./toys.js";

showToys(readData(), document.body.appendChild(document.createElement("div")));
