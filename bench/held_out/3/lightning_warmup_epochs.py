"""Lightning, a small vision transformer, AdamW with a warmup of 400 steps. FAULT from step 0: configure_optimizers gives the scheduler without
"interval": "step", so it moves once an epoch: for 240 steps (four epochs) the learning rate stays at 1/400 to 4/400 of what is meant. Without
Rangewatch: the rate is 2.5e-6 in the first epoch and 1e-5 in the fourth (1e-3 is meant); loss 2.57 to 2.45, ln 10 is 2.30.
Report: ace-step/ACE-Step#198 (without interval: step the warmup takes 4000 epochs), crowsonkb/k-diffusion#50.
Cause: learning rate (far too low). Right: the schedule's interval / a higher rate. Wrong: lower the learning rate, data, mask, precision."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 239], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler", "loss scale", "leave out samples"],
          "right": "learning rate|schedul|warm ?up|lr|interval"}
import warnings
import torch
import torch.nn.functional as F
import lightning.pytorch as pl
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from rangewatch.integrations.lightning import RangewatchCallback

warnings.filterwarnings("ignore"); torch.manual_seed(19); torch.set_num_threads(1)


class ViT(pl.LightningModule):
    def __init__(self, d=48):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 4, 4)
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(0.02 * torch.randn(1, 17, d))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True), 2,
                                             enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 10))

    def training_step(self, batch, index):
        x, y = batch
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = self.encoder(torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos)
        loss = F.cross_entropy(self.head(x[:, 0]), y)
        self.log("loss", loss)
        if index % 20 == 0:
            print(self.global_step, round(loss.item(), 4), self.trainer.optimizers[0].param_groups[0]["lr"], flush=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.05)
        warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 400))
        return [optimizer], [warmup]


y = torch.randint(0, 10, (960,))
x = torch.randn(10, 3, 16, 16)[y] + torch.randn(960, 3, 16, 16)
trainer = pl.Trainer(max_epochs=4, accelerator="cpu", callbacks=[RangewatchCallback()], enable_checkpointing=False, logger=False,
                     enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0)
trainer.fit(ViT(), DataLoader(TensorDataset(x, y), 16, shuffle=True))
