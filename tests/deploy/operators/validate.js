// Reads a JSON list of objects from standard input, and writes for each a line: null, or what its operator refuses in it.
import { readFileSync } from "node:fs";
import * as keda from "@kubernetes-models/keda/keda.sh/v1alpha1";
import * as prometheus from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

const known = { "keda.sh/v1alpha1": keda, "monitoring.coreos.com/v1": prometheus };

for (const found of JSON.parse(readFileSync(0, "utf8"))) {
  let refused = null;
  try {
    new known[found.apiVersion][found.kind](found).validate();
  } catch (error) {
    refused = error.message;
  }
  console.log(JSON.stringify(refused));
}
