// Dawn's WebGPU in Node, set up as onnxruntime-web finds it in a browser: global classes and navigator.gpu.
// And, in both, what onnxruntime does not tell: the device that it creates, the events of that device, and
// the first use of each shader.

/** Puts Dawn where onnxruntime-web looks for it. */
export function installDawn(dawn, gpu) {
  Object.assign(globalThis, dawn.globals);
  // Node has a navigator from version 21 on; it is read-only but can be extended.
  if (!globalThis.navigator) {
    Object.defineProperty(globalThis, "navigator", { value: { userAgent: "Node" } });
  }
  Object.defineProperty(navigator, "gpu", { value: gpu });
  copySharedMemory(GPUQueue.prototype);
  throwLikeBrowsers(GPUDevice.prototype);
}

/**
 * The devices that are created from now on. `onShader` is called with a shader's text before a pipeline
 * is created from it.
 */
export function watchDevices(onShader) {
  const devices = new Devices();
  const { requestDevice } = GPUAdapter.prototype;
  GPUAdapter.prototype.requestDevice = async function (...parameters) {
    const device = await requestDevice.apply(this, parameters);
    devices.watch(device, this);
    return device;
  };
  const texts = new WeakMap(); // of shader modules
  const { createShaderModule } = GPUDevice.prototype;
  GPUDevice.prototype.createShaderModule = function (descriptor) {
    const module = createShaderModule.call(this, descriptor);
    texts.set(module, descriptor.code);
    return module;
  };
  for (const name of ["createComputePipeline", "createComputePipelineAsync"]) {
    const create = GPUDevice.prototype[name];
    GPUDevice.prototype[name] = function (descriptor) {
      onShader(texts.get(descriptor.compute.module));
      return create.call(this, descriptor);
    };
  }
  return devices;
}

/**
 * Dawn's `writeBuffer` does not accept views of a SharedArrayBuffer, which the memory of the threaded
 * wasm always is; a browser copies them.
 */
function copySharedMemory(queue) {
  const { writeBuffer } = queue;
  queue.writeBuffer = function (buffer, bufferOffset, data, dataOffset = 0, size = undefined) {
    const memory = ArrayBuffer.isView(data) ? data.buffer : data;
    if (!(memory instanceof SharedArrayBuffer)) {
      return writeBuffer.call(this, buffer, bufferOffset, data, dataOffset, size);
    }
    // Offset and size count elements of a typed array, and bytes of anything else.
    const unit = data.BYTES_PER_ELEMENT ?? 1;
    const start = (data.byteOffset ?? 0) + dataOffset * unit;
    const length = size === undefined ? data.byteLength - dataOffset * unit : size * unit;
    return writeBuffer.call(this, buffer, bufferOffset, new Uint8Array(memory, start, length).slice());
  };
}

/**
 * If an entry of a bind group has no resource, Dawn in Node ends the process, while a browser
 * throws. onnxruntime creates such entries for tensors without elements.
 */
function throwLikeBrowsers(device) {
  const { createBindGroup } = device;
  device.createBindGroup = function (descriptor) {
    for (const { binding, resource } of descriptor.entries) {
      if (!resource) {
        throw new TypeError(
          `Failed to execute 'createBindGroup' on 'GPUDevice': the resource of binding ${binding} ` +
            `in ${descriptor.label || "a bind group"} is undefined.`,
        );
      }
    }
    return createBindGroup.call(this, descriptor);
  };
}

/** The devices that were created, and their events. */
class Devices {
  /** The last device that was created, and its adapter. */
  device = null;
  adapter = null;
  /** Why a device was lost; null if none was. */
  lost = null;

  watch(device, adapter) {
    this.device = device;
    this.adapter = adapter;
    device.addEventListener("uncapturederror", ({ error }) => {
      console.error(`${error.constructor.name} outside of any call: ${error.message}`);
    });
    device.lost.then(({ reason, message }) => {
      this.lost = `${reason}: ${message}`; // no code destroys it on purpose
    });
  }

  /** Wait until the device has done all its work, and its events have been received. */
  async settle() {
    if (!this.device || this.lost) return;
    const done = this.device.queue.onSubmittedWorkDone();
    await Promise.race([done.catch(() => {}), this.device.lost]); // it rejects if the device is lost
    await new Promise(globalThis.setImmediate ?? setTimeout); // a browser has no setImmediate
  }
}
