"""Lightning, a convolutional classifier with BatchNorm and dropout. FAULT at step 110: a callback writes previews after a training batch, calls `eval()` on the
module and never `train()` (Lightning does not set it back before the next training step): from step 111 on the net is trained in evaluation mode: no
dropout, BatchNorm by its running statistics, which stand still while the weights go on. The loss falls faster than before, as dropout is off. Report:
Lightning-AI/pytorch-lightning#20216 (once in eval mode by accident it stays so), fartashf/vsepp#4.
Cause: eval (training goes on in evaluation mode), step 110. Right: call train() again. Wrong: lower the learning rate, data, mask, precision."""
EXPECT = {"cause": ["eval"], "step": [110, 125], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler", "leave out samples"], "right": "\\.train\\(|training mode|train mode|eval(uation)? mode"}
import warnings
import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from rangewatch.integrations.lightning import RangewatchCallback

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
pl.seed_everything(3, verbose=False)


class Net(pl.LightningModule):
    def __init__(self, classes=8):
        super().__init__()
        layers, c = [], 3
        for width in (16, 24, 32):
            layers += [nn.Conv2d(c, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            c = width
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.3))
        self.classify = nn.Linear(4 * c, classes)

    def forward(self, x):
        return self.classify(self.features(x))

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss)
        if index % 10 == 0 or 108 <= index < 114:
            bn = self.features[1]
            print(index, round(loss.item(), 4), self.training, bn.num_batches_tracked.item(), flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class Previews(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if index == 110:
            module.eval()
            with torch.no_grad():
                classes = module(batch[0][:4]).argmax(1)
            print("preview", classes.tolist())


gen = torch.Generator().manual_seed(0)
proto = torch.randn(8, 3, 10, 10, generator=gen)
labels = torch.randint(0, 8, (32 * 240,), generator=gen)
images = proto[labels] + 1.6 * torch.randn(len(labels), 3, 10, 10, generator=gen)
trainer = pl.Trainer(max_steps=240, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                     enable_model_summary=False, callbacks=[Previews(), RangewatchCallback()])
trainer.fit(Net(), DataLoader(TensorDataset(images, labels), batch_size=32))
