// Compiles WGSL texts with Tint, Dawn's compiler, on Dawn's null backend: no GPU
// is opened. Standard input: a JSON list of texts, each with whether it keeps to the
// default limits. Standard output: for each text a list of errors, each with its line
// (0 where none is named) and message.
import { create } from 'webgpu';

let input = '';
for await (const part of process.stdin) {
  input += part;
}
const gpu = create(['backend=null']);
const adapter = await gpu.requestAdapter();
const device = await adapter.requestDevice({ requiredFeatures: ['shader-f16', 'subgroups'] });
// Kept until the end: Dawn's threads outlive the objects otherwise, and crash.
globalThis.kept = [gpu, adapter, device];
const faults = [];
for (const { wgsl, within_limits } of JSON.parse(input)) {
  faults.push(await faultsOf(wgsl, within_limits));
}
device.destroy();
process.stdout.write(JSON.stringify(faults), () => process.exit(0));

async function faultsOf(code, withinLimits) {
  // The scope keeps Dawn from printing what is returned.
  device.pushErrorScope('validation');
  const module = device.createShaderModule({ code });
  const { messages } = await module.getCompilationInfo();
  const error = await device.popErrorScope();
  const found = [];
  for (const { type, lineNum, message } of messages) {
    if (type === 'error') {
      found.push({ line: lineNum, message });
    } else if (type === 'info' && found.length > 0) {
      // Tint tells the cause of an error in notes after it.
      found[found.length - 1].message += `; line ${lineNum}: ${message}`;
    }
  }
  if (found.length === 0 && error) {
    found.push({ line: 0, message: error.message });
  }
  // The null adapter has the default limits and no others.
  if (found.length > 0 || !withinLimits) {
    return found;
  }
  // Sizes of workgroups and of their memory, and numbers of bindings.
  // Not asynchronously: that takes Dawn's threads, which crash when the machine is busy.
  device.pushErrorScope('validation');
  device.createComputePipeline({ layout: 'auto', compute: { module, entryPoint: 'main' } });
  const refused = await device.popErrorScope();
  return refused ? [{ line: 0, message: refused.message }] : [];
}
