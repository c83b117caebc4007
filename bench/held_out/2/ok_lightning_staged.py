"""Lightning's BaseFinetuning: a pretrained backbone of three stages is frozen, the last stage is unfrozen after epoch 2 and the others after epoch 4, each as a new
parameter group with a tenth of the learning rate. HEALTHY: frozen parameters do not change because they are frozen."""
EXPECT = {"healthy": True}
import logging
import warnings
import lightning.pytorch as pl
import torch
import torch.nn as nn
from lightning.pytorch.callbacks import BaseFinetuning
from torch.utils.data import DataLoader, TensorDataset
from rangewatch.integrations.lightning import RangewatchCallback

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
pl.seed_everything(8, verbose=False)


def stage(i, o):
    return nn.Sequential(nn.Linear(i, o), nn.LayerNorm(o), nn.SiLU())


class Tuned(pl.LightningModule):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(48, 9)

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.head(self.backbone(x)), y)
        self.log("loss", loss)
        if index == 0:
            print("epoch", self.current_epoch, loss.item(), sum(p.requires_grad for p in self.parameters()), flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=3e-3)


class Staged(BaseFinetuning):
    def freeze_before_training(self, module):
        self.freeze(module.backbone)

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 2:
            self.unfreeze_and_add_param_group(module.backbone[2], optimizer, lr=3e-4)
        if epoch == 4:
            self.unfreeze_and_add_param_group(module.backbone[:2], optimizer, lr=3e-4)


centres = torch.randn(18, 30)
backbone = nn.Sequential(stage(30, 64), stage(64, 64), stage(64, 48))
pre_head = nn.Linear(48, 9)
pre = torch.optim.Adam([*backbone.parameters(), *pre_head.parameters()], 2e-3)
for _ in range(120):
    y = torch.randint(0, 9, (64,))
    loss = nn.functional.cross_entropy(pre_head(backbone(centres[y] + torch.randn(64, 30))), y)
    pre.zero_grad(); loss.backward(); pre.step()
y = torch.randint(0, 9, (32 * 36,))
x = centres[9 + y] + 1.5 * torch.randn(len(y), 30)
trainer = pl.Trainer(max_epochs=6, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                     enable_model_summary=False, callbacks=[Staged(), RangewatchCallback()])
trainer.fit(Tuned(backbone), DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True))
