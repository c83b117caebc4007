"""Supervised fine-tuning (answers behind a prompt, prompt tokens masked by -100) of a small decoder, AdamW with linear decay. FAULT at step 130: the run is
resumed from its checkpoint of model and optimizer, but the schedule is not restored and the rate is set by hand to the `base_lr` of the config, 0.05 (it was
the rate for the adapter warm start), while the decay had brought it to 0.0012.
Without Rangewatch: loss 3.18 to 0.74 at step 130, 3.87 at step 131, 4.49 at step 132, 2.9 (near log 18) to the end.
Cause: learning_rate (optimizer). Step: 129 to 150. Right: learning rate / scheduler state / resume. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["learning_rate", "optimizer"], "step": [129, 150], "place": None, "rank": None,
          "right": "(?i)learning.?rate|\\blr\\b|schedul|resum|state_dict", "wrong": ["GradScaler", "(?i)bad batch", "(?i)log of (0|zero)"]}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(404); torch.set_num_threads(1)
V, L, PROMPT = 20, 17, 9
config = {"base_lr": 0.05, "finetune_lr": 3e-3, "total_steps": 220}


class Decoder(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, d), nn.Parameter(0.02 * torch.randn(L, d))
        layer = nn.TransformerEncoderLayer(d, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, V)
        self.register_buffer("causal", torch.triu(torch.ones(L, L, dtype=torch.bool), 1))

    def forward(self, ids):
        T = ids.shape[1]
        x = self.tok(ids) + self.pos[:T]
        return self.out(self.norm(self.layers(x, mask=self.causal[:T, :T])))


def examples(n):
    prompt = torch.randint(2, V, (n, PROMPT - 1))
    ids = torch.cat((prompt, torch.ones(n, 1, dtype=torch.long), prompt.flip(1)), 1)
    labels = ids.clone()
    labels[:, :PROMPT] = -100
    return ids, labels


def build():
    model = Decoder()
    return model, torch.optim.AdamW(model.parameters(), lr=config["finetune_lr"], weight_decay=0.01)


model, optimizer = build()
handle = rangewatch.attach(model, optimizer)
total = config["total_steps"]
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 - s / total)
step, checkpoint = 0, None
while step < total:
    if step == 130 and checkpoint is None:
        checkpoint = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        for group in optimizer.param_groups:
            group["lr"] = config["base_lr"]
        scheduler = None
    ids, labels = examples(32)
    logits = model(ids)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if scheduler is not None:
        scheduler.step()
    if step % 20 == 0 or 128 < step < 136 or step == total - 1:
        print(step, loss.item(), optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
    step += 1
handle.detach()
