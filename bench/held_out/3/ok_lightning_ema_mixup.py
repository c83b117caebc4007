"""Lightning, a small convolutional net: the average of the weights takes the model's place for each validation and gives it back afterwards; the
backbone has a tenth of the head's rate; mixup with label smoothing begins at step 120. HEALTHY: the loss rises at step 120 because the targets are
mixed from there on, and stays higher; validation does not get
worse. Without Rangewatch: loss 2.30 to 0.88 at step 100, 1.5 to 1.8 from step 120 on; validation 2.29, 1.58, 0.93, 0.88, 0.89. Changed after a
first run, before any with Rangewatch: the images are noisier (it was learnt by step 60, and smoothed labels made validation look worse)."""
EXPECT = {"healthy": True}
import warnings
import torch
import torch.nn.functional as F
import lightning.pytorch as pl
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from rangewatch.integrations.lightning import RangewatchCallback

warnings.filterwarnings("ignore"); torch.manual_seed(79); torch.set_num_threads(1)


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.SiLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(288, 64), nn.SiLU(), nn.Linear(64, 10))
        self.average = [p.detach().clone() for p in self.parameters()]

    def forward(self, x):
        return self.head(self.backbone(x))

    def training_step(self, batch, index):
        x, y = batch
        target = F.one_hot(y, 10).float()
        if self.global_step >= 120:
            share, other = float(torch.distributions.Beta(0.8, 0.8).sample()), torch.randperm(len(x))
            x, target = share * x + (1 - share) * x[other], 0.9 * (share * target + (1 - share) * target[other]) + 0.01
        loss = F.cross_entropy(self(x), target)
        self.log("loss", loss)
        if self.global_step % 20 == 0:
            print(self.global_step, round(loss.item(), 4), flush=True)
        return loss

    def on_train_batch_end(self, *_):
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters()], 0.03)

    @torch.no_grad()
    def swap(self):
        for a, p in zip(self.average, self.parameters()):
            kept = p.clone()
            p.copy_(a); a.copy_(kept)

    def on_validation_start(self):
        self.swap()

    def on_validation_end(self):
        self.swap()

    def validation_step(self, batch, index):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("val_loss", loss)
        print("validation", round(loss.item(), 4), flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW([{"params": self.backbone.parameters(), "lr": 3e-4}, {"params": self.head.parameters(), "lr": 3e-3}], weight_decay=0.02)


proto = torch.randn(10, 1, 12, 12)
y = torch.randint(0, 10, (6000,))
x = proto[y] + 4.0 * torch.randn(6000, 1, 12, 12)
train, val = TensorDataset(x[:5760], y[:5760]), TensorDataset(x[5760:], y[5760:])
trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[RangewatchCallback()], enable_checkpointing=False, logger=False, val_check_interval=60,
                     enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Net(), DataLoader(train, 24, shuffle=True), DataLoader(val, 240))
