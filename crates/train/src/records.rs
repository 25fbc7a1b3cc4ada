//! The way out for a learner's state.
//!
//! burn's `Learner` keeps its optimizer to itself, and hands its record only to the checkpointers it was given. These pass the
//! records on to the step loop, which writes them as one.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use burn::optim::OptimizerRecord;
use burn::optim::lr_scheduler::LrSchedulerRecord;
use burn::store::ModuleRecord;
use burn::train::checkpoint::{
    Checkpoint, Checkpointer, CheckpointerError, CheckpointingAction, CheckpointingStrategy,
};
use burn::train::metric::store::EventStoreClient;

/// Where records come out.
pub(crate) struct RecordReceiver {
    pub(crate) model: Receiver<ModuleRecord>,
    pub(crate) optimizer: Receiver<OptimizerRecord>,
}

/// The checkpointer of one kind of record.
pub(crate) struct RecordSender<R>(Option<SyncSender<R>>);

/// Checkpointers for burn, and where their records come out. That of the schedule has none: it is a function of the step.
pub(crate) fn channels()
-> (RecordSender<ModuleRecord>, RecordSender<OptimizerRecord>, RecordSender<LrSchedulerRecord>, RecordReceiver) {
    let ((model_in, model), (optimizer_in, optimizer)) = (sync_channel(1), sync_channel(1));
    (
        RecordSender(Some(model_in)),
        RecordSender(Some(optimizer_in)),
        RecordSender(None),
        RecordReceiver { model, optimizer },
    )
}

impl<R: Checkpoint> Checkpointer<R> for RecordSender<R> {
    fn save(&self, _epoch: usize, record: R) -> Result<(), CheckpointerError> {
        let Some(out) = &self.0 else { return Ok(()) };
        out.send(record).map_err(|error| CheckpointerError::Unknown(error.to_string()))
    }

    fn delete(&self, _epoch: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, epoch: usize) -> Result<R, CheckpointerError> {
        Err(CheckpointerError::Unknown(format!("nothing is kept here, not for {epoch} either")))
    }
}

/// When the step loop says so.
pub(crate) struct WhenAsked;

impl CheckpointingStrategy for WhenAsked {
    fn checkpointing(&mut self, _epoch: usize, _events: &EventStoreClient) -> Vec<CheckpointingAction> {
        vec![CheckpointingAction::Save]
    }
}
