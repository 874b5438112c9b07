//! One dispatch at a time with its operands read back, for the checks.

use super::{
    Engine, Program,
    memory::{POISON, floats, read_guarded},
};
use anyhow::Result;
use kernels::{
    Dispatch, Plan,
    plan::{Activation, Buffer, activation_len},
    role::{Access, Binding},
};
use reference::numerics::widen;
use std::collections::BTreeMap;

/// Operands of one dispatch: inputs before it, outputs after it, in f64.
#[derive(Debug)]
pub struct Captured<'p> {
    /// The dispatch.
    pub dispatch: &'p Dispatch,
    /// Activations by name.
    pub activations: BTreeMap<Activation, Vec<f64>>,
    /// What the activations held that the dispatch changes in place.
    pub replaced: BTreeMap<Activation, Vec<f64>>,
    /// The layer's pages before and after, where it is bound.
    pub kv: Option<[Vec<f32>; 2]>,
}

/// Selects every dispatch.
pub const fn every(_: &Dispatch) -> bool {
    true
}

impl Engine<'_> {
    /// Runs one token dispatch by dispatch. Before each that `select` takes, its
    /// outputs are filled with NaN, save what it changes in place; after it, the
    /// guard words behind them must be intact. The others only run.
    ///
    /// # Errors
    /// A device error, a touched guard, or what `visit` returns.
    pub fn run_captured<'p>(
        &self,
        program: &'p Program,
        position: usize,
        select: impl Fn(&Dispatch) -> bool,
        mut visit: impl FnMut(Captured<'p>) -> Result<()>,
    ) -> Result<()> {
        self.memory.require(position + 1)?;
        let elem = program.plan.elem;
        let mut encoder = self.encoder();
        self.memory.advance(&mut encoder, position);
        self.gpu.run("advancing the position", encoder)?;
        for (i, dispatch) in program.plan.dispatches.iter().enumerate() {
            if !select(dispatch) {
                let mut encoder = self.encoder();
                program.record(&mut encoder, Some(i));
                self.gpu.run(&dispatch.label, encoder)?;
                continue;
            }
            let storage = dispatch.variant.storage_bindings();
            let bound: Vec<(Buffer, &Binding)> =
                dispatch.buffers.iter().copied().zip(storage).collect();
            let layer = bound.iter().find_map(|&(buffer, _)| match buffer {
                Buffer::KvPages { layer } => Some(layer),
                Buffer::Param { .. } | Buffer::Activation(_) | Buffer::State(_) => None,
            });
            let before = layer
                .map(|l| self.memory.read_kv(self.gpu, l, elem))
                .transpose()?;
            let mut replaced = BTreeMap::new();
            for &(buffer, binding) in &bound {
                let Buffer::Activation(activation) = buffer else {
                    continue;
                };
                if binding.in_place {
                    let held = self.read_activation(&dispatch.label, activation, &program.plan)?;
                    replaced.insert(activation, held);
                } else if binding.access == Access::ReadWrite {
                    let poison = vec![POISON; self.memory.bytes(buffer, elem) as usize];
                    self.gpu
                        .queue
                        .write_buffer(self.memory.buffer(buffer, elem), 0, &poison);
                }
            }
            let mut encoder = self.encoder();
            program.record(&mut encoder, Some(i));
            self.gpu.run(&dispatch.label, encoder)?;
            let mut activations = BTreeMap::new();
            for &(buffer, _) in &bound {
                if let Buffer::Activation(activation) = buffer {
                    activations.insert(
                        activation,
                        self.read_activation(&dispatch.label, activation, &program.plan)?,
                    );
                }
            }
            let after = layer
                .map(|l| self.memory.read_kv(self.gpu, l, elem))
                .transpose()?;
            visit(Captured {
                dispatch,
                activations,
                replaced,
                kv: before.zip(after).map(|(before, after)| [before, after]),
            })?;
        }
        Ok(())
    }

    pub(super) fn read_activation(
        &self,
        label: &str,
        activation: Activation,
        plan: &Plan,
    ) -> Result<Vec<f64>> {
        let name = Buffer::Activation(activation);
        let what = format!("{label}: {activation:?}");
        let elem = activation.elem(plan.elem);
        let buffer = self.memory.buffer(name, plan.elem);
        let bytes = self.memory.bytes(name, plan.elem);
        let data = read_guarded(self.gpu, &what, buffer, bytes)?;
        let mut values = widen(&floats(&data, elem));
        values.truncate(activation_len(self.weights.spec(), activation, plan.splits));
        Ok(values)
    }
}
